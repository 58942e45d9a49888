package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// marshalYAML returns v as YAML with the names and the order of its JSON.
func marshalYAML(v any) ([]byte, error) {
	text, err := marshalJSON(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	node, err := yamlNode(dec)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(node), enc.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// marshalJSON leaves <, > and & as they are: this is not for web pages.
func marshalJSON(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}

// errEnd is the end of an object or array.
var errEnd = errors.New("end")

func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag string, value any) (*yaml.Node, error) {
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: fmt.Sprint(value)}
		if _, ok := value.(string); ok {
			// Parsers of YAML 1.1 take more words for other types than this package
			// does.
			n.Style = yaml.DoubleQuotedStyle
		}
		return n, nil
	}
	switch token := token.(type) {
	case string:
		return scalar("!!str", token)
	case json.Number:
		n, err := scalar("!!float", token)
		if _, e := token.Int64(); e == nil {
			n.Tag = "!!int"
		}
		return n, err
	case bool:
		return scalar("!!bool", token)
	case nil:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	case json.Delim:
		switch token {
		case '{':
			return yamlCollection(dec, yaml.MappingNode)
		case '[':
			return yamlCollection(dec, yaml.SequenceNode)
		}
		return nil, errEnd
	}
	return nil, io.ErrUnexpectedEOF
}

func yamlCollection(dec *json.Decoder, kind yaml.Kind) (*yaml.Node, error) {
	n := &yaml.Node{Kind: kind}
	for {
		child, err := yamlNode(dec)
		if errors.Is(err, errEnd) {
			if len(n.Content) == 0 {
				n.Style = yaml.FlowStyle // [] and {}
			}
			return n, nil
		}
		if err != nil {
			return nil, err
		}
		if kind == yaml.MappingNode && len(n.Content)%2 == 0 {
			child.Style = 0 // a name
		}
		n.Content = append(n.Content, child)
	}
}
