package row

import (
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
)

// A codec encodes values of one Go type. optional says that the type has a value that
// stands for an absent cell: nil.
type codec struct {
	optional bool
	encode   func(v reflect.Value) ([]byte, error)
	// decode sets v, which is settable and zero.
	decode func(data []byte, v reflect.Value) error
}

const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

var (
	timeType            = reflect.TypeFor[time.Time]()
	protoType           = reflect.TypeFor[proto.Message]()
	textMarshaler       = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler     = reflect.TypeFor[encoding.TextUnmarshaler]()
	binaryMarshaler     = reflect.TypeFor[encoding.BinaryMarshaler]()
	binaryUnmarshaler   = reflect.TypeFor[encoding.BinaryUnmarshaler]()
	errOutOfRange       = errors.New("the number does not fit into the field")
	deterministic       = proto.MarshalOptions{Deterministic: true}
	errTimeOutsideRange = errors.New("the year is not between 0 and 9999")
)

// codecOf returns the codec of a type. option is the encoding that the tag names, or "".
func codecOf(t reflect.Type, option string) (codec, error) {
	switch option {
	case "", "json", "text", "binary":
	default:
		return codec{}, fmt.Errorf("unknown encoding %q; known are json, text and binary", option)
	}
	isProto := option == "" && t.Kind() == reflect.Pointer && t.Implements(protoType)
	if t.Kind() == reflect.Pointer && !isProto {
		elem, err := codecOf(t.Elem(), option)
		if err == nil && elem.optional {
			err = fmt.Errorf("type %s has two ways to be absent", t)
		}
		return pointerTo(t, elem), err
	}
	switch {
	case isProto:
		return protoCodec(t), nil
	case option == "json":
		return codec{
			encode: func(v reflect.Value) ([]byte, error) { return json.Marshal(v.Interface()) },
			decode: func(data []byte, v reflect.Value) error { return json.Unmarshal(data, v.Addr().Interface()) },
		}, nil
	case option == "binary":
		if p := reflect.PointerTo(t); !p.Implements(binaryMarshaler) || !p.Implements(binaryUnmarshaler) {
			return codec{}, fmt.Errorf("type %s has no methods MarshalBinary and UnmarshalBinary", t)
		}
		return codec{
			encode: func(v reflect.Value) ([]byte, error) { return addressed(v).(encoding.BinaryMarshaler).MarshalBinary() },
			decode: func(data []byte, v reflect.Value) error {
				return v.Addr().Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(data)
			},
		}, nil
	case t == timeType:
		return timeCodec, nil
	case reflect.PointerTo(t).Implements(textMarshaler) && reflect.PointerTo(t).Implements(textUnmarshaler):
		return codec{
			encode: func(v reflect.Value) ([]byte, error) { return addressed(v).(encoding.TextMarshaler).MarshalText() },
			decode: func(data []byte, v reflect.Value) error {
				return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(data)
			},
		}, nil
	}
	return codecOfKind(t, option == "text")
}

// addressed returns a pointer to a copy of v: a marshaler may have a pointer as receiver.
func addressed(v reflect.Value) any {
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Interface()
}

func codecOfKind(t reflect.Type, text bool) (codec, error) {
	switch t.Kind() {
	case reflect.String:
		return codec{
			encode: func(v reflect.Value) ([]byte, error) { return []byte(v.String()), nil },
			decode: func(data []byte, v reflect.Value) error { v.SetString(string(data)); return nil },
		}, nil
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return codec{
				optional: true,
				encode:   func(v reflect.Value) ([]byte, error) { return append([]byte{}, v.Bytes()...), nil },
				decode:   func(data []byte, v reflect.Value) error { v.SetBytes(append([]byte{}, data...)); return nil },
			}, nil
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return numbers(text, func(v reflect.Value) (uint64, string) { return uint64(v.Int()), strconv.FormatInt(v.Int(), 10) },
			func(n uint64, s string, v reflect.Value) (err error) {
				i := int64(n)
				if text {
					i, err = strconv.ParseInt(s, 10, 64)
				}
				if err == nil && v.OverflowInt(i) {
					err = errOutOfRange
				}
				v.SetInt(i)
				return err
			}), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return numbers(text, func(v reflect.Value) (uint64, string) { return v.Uint(), strconv.FormatUint(v.Uint(), 10) },
			func(n uint64, s string, v reflect.Value) (err error) {
				if text {
					n, err = strconv.ParseUint(s, 10, 64)
				}
				if err == nil && v.OverflowUint(n) {
					err = errOutOfRange
				}
				v.SetUint(n)
				return err
			}), nil
	case reflect.Float32, reflect.Float64:
		return numbers(text, func(v reflect.Value) (uint64, string) {
			return math.Float64bits(v.Float()), strconv.FormatFloat(v.Float(), 'g', -1, 64)
		}, func(n uint64, s string, v reflect.Value) (err error) {
			f := math.Float64frombits(n)
			if text {
				f, err = strconv.ParseFloat(s, 64)
			}
			if err == nil && v.OverflowFloat(f) {
				err = errOutOfRange
			}
			v.SetFloat(f)
			return err
		}), nil
	case reflect.Bool:
		return boolCodec(text), nil
	}
	return codec{}, fmt.Errorf("type %s has no encoding of its own; add json to the tag, or give it MarshalText and UnmarshalText", t)
}

// numbers is the codec of a number, which the functions convert to and from 64 bits or text.
func numbers(text bool, of func(reflect.Value) (uint64, string), set func(uint64, string, reflect.Value) error) codec {
	return codec{
		encode: func(v reflect.Value) ([]byte, error) {
			n, s := of(v)
			if text {
				return []byte(s), nil
			}
			return binary.BigEndian.AppendUint64(nil, n), nil
		},
		decode: func(data []byte, v reflect.Value) error {
			if text {
				return set(0, string(data), v)
			}
			if len(data) != 8 {
				return fmt.Errorf("the value has %d bytes; a number has 8 (or add text to the tag, for decimal numbers)", len(data))
			}
			return set(binary.BigEndian.Uint64(data), "", v)
		},
	}
}

func boolCodec(text bool) codec {
	values := [2]string{"\x00", "\x01"}
	if text {
		values = [2]string{"false", "true"}
	}
	return codec{
		encode: func(v reflect.Value) ([]byte, error) {
			if v.Bool() {
				return []byte(values[1]), nil
			}
			return []byte(values[0]), nil
		},
		decode: func(data []byte, v reflect.Value) error {
			v.SetBool(string(data) == values[1])
			if string(data) != values[0] && string(data) != values[1] {
				return fmt.Errorf("the value is neither %q nor %q", values[0], values[1])
			}
			return nil
		},
	}
}

var timeCodec = codec{
	encode: func(v reflect.Value) ([]byte, error) {
		t := v.Interface().(time.Time).UTC()
		if y := t.Year(); y < 0 || y > 9999 {
			return nil, errTimeOutsideRange
		}
		return t.AppendFormat(nil, timeLayout), nil
	},
	decode: func(data []byte, v reflect.Value) error {
		t, err := time.Parse(time.RFC3339Nano, string(data))
		v.Set(reflect.ValueOf(t.UTC()))
		return err
	},
}

func protoCodec(t reflect.Type) codec {
	return codec{
		optional: true,
		encode:   func(v reflect.Value) ([]byte, error) { return deterministic.Marshal(v.Interface().(proto.Message)) },
		decode: func(data []byte, v reflect.Value) error {
			m := reflect.New(t.Elem())
			v.Set(m)
			return proto.Unmarshal(data, m.Interface().(proto.Message))
		},
	}
}

func pointerTo(t reflect.Type, elem codec) codec {
	return codec{
		optional: true,
		encode:   func(v reflect.Value) ([]byte, error) { return elem.encode(v.Elem()) },
		decode: func(data []byte, v reflect.Value) error {
			v.Set(reflect.New(t.Elem()))
			return elem.decode(data, v.Elem())
		},
	}
}
