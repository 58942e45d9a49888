// Package history records the requests of clients of a transactional store and the
// store's answers. It finds the anomalies in such a history, or shows that the store
// kept its isolation level.
//
// Two kinds of checkers use the same history. [CheckTimestamps] trusts the timestamps
// that the store reports, and compares every read with the one state that its
// timestamp allows. It is fast, and complete for a store that works with timestamps.
// [CheckAppend] and [CheckRegisters] trust only what was read. They infer
// dependencies between transactions from it, and look for cycles, as Elle does
// (Kingsbury and Alvaro, VLDB 2020). Reads of lists show the whole order of versions,
// reads of registers only a part of it.
package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Type says what a record is.
type Type string

// The types of records.
const (
	Invoke Type = "invoke" // a transaction begins
	OK     Type = "ok"     // it committed
	Fail   Type = "fail"   // it did not commit, and never will
	Info   Type = "info"   // its outcome is unknown; its process number ends here
)

// A Record is the beginning or the end of one transaction. Each is a line with one
// JSON object:
//
//	{"type":"ok","process":3,"time":17,"start_ts":5,"commit_ts":9,"value":[["append","k",1],["r","k",[1]]]}
type Record struct {
	Type Type `json:"type"`
	// Process is the number of a client that has one transaction at a time.
	Process int `json:"process"`
	// Time is in nanoseconds, of one clock for the whole history. For an Invoke it
	// is before the transaction requested its start_ts, for an OK after the commit
	// was acknowledged. A transaction may miss what others committed between the
	// Invoke and its end, so a read that may be stale by d has an Invoke that is d
	// before its call, under a process number of its own.
	Time int64 `json:"time"`
	// StartTS and CommitTS are 0 if they are not known. A transaction that wrote
	// nothing has no CommitTS, or one that is equal to StartTS; several of them may
	// have the same StartTS. No other timestamps are equal.
	StartTS  int64 `json:"start_ts"`
	CommitTS int64 `json:"commit_ts"`
	Value    []Op  `json:"value"`
	// Latest says that the transaction is a read of the latest state of its keys, which are in
	// one row. Its StartTS is the newest commit_ts that it has seen, or 1. It may miss what
	// was committed in other rows before it began.
	Latest bool `json:"latest,omitempty"`
}

// A Func is the kind of an operation.
type Func string

// The functions. No element or number may be written twice to the same key in a
// history, so that each read shows which transactions it read from.
const (
	Append Func = "append" // ["append", key, element]: a list grows
	Write  Func = "w"      // ["w", key, number]: a register is overwritten
	Read   Func = "r"      // ["r", key, state]; the state is null before it is known
	Lock   Func = "lock"   // ["lock", key, null]: a lock-only write
)

// An Op is one operation of a transaction. In JSON it is the array [function, key,
// value].
type Op struct {
	F   Func
	Key string
	N   int64 // the element or number of an Append or Write
	// State is the result of a Read.
	State State
}

// A State is the content of one key: nothing, a number, or a list. An empty list is
// nothing too, because a read cannot distinguish it from a list that was never written.
type State struct {
	kind byte // 0, 'n' or 'l'
	n    int64
	list []int64
}

// Number is the state of a register.
func Number(n int64) State { return State{kind: 'n', n: n} }

// List is the state of a list.
func List(elements ...int64) State { return State{kind: 'l', list: elements} }

// Elements returns the elements of a list.
func (s State) Elements() []int64 { return s.list }

// Int returns the number in a register, and whether there is one.
func (s State) Int() (int64, bool) { return s.n, s.kind == 'n' }

func (s State) equal(o State) bool {
	if s.kind == 'n' || o.kind == 'n' {
		return s.kind == o.kind && s.n == o.n
	}
	if len(s.list) != len(o.list) {
		return false
	}
	for i, e := range s.list {
		if o.list[i] != e {
			return false
		}
	}
	return true
}

// values returns the elements or the number of a state.
func (s State) values() []int64 {
	if s.kind == 'n' {
		return []int64{s.n}
	}
	return s.list
}

// String returns the state as JSON.
func (s State) String() string {
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// MarshalJSON returns null, a number or an array.
func (s State) MarshalJSON() ([]byte, error) {
	switch {
	case s.kind == 'n':
		return json.Marshal(s.n)
	case s.kind == 0:
		return []byte("null"), nil
	case s.list == nil:
		return []byte("[]"), nil
	}
	return json.Marshal(s.list)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (s *State) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	*s = State{}
	switch {
	case string(b) == "null":
		return nil
	case len(b) > 0 && b[0] == '[':
		s.kind = 'l'
		return json.Unmarshal(b, &s.list)
	}
	s.kind = 'n'
	return json.Unmarshal(b, &s.n)
}

// String returns the operation as JSON.
func (o Op) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// MarshalJSON returns [function, key, value].
func (o Op) MarshalJSON() ([]byte, error) {
	var value any
	switch o.F {
	case Append, Write:
		value = o.N
	case Read:
		value = o.State
	}
	return json.Marshal([]any{o.F, o.Key, value})
}

// UnmarshalJSON is the inverse of MarshalJSON. It also accepts keys that are numbers,
// which other programs write.
func (o *Op) UnmarshalJSON(b []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	if len(parts) != 3 {
		return fmt.Errorf("operation %s is not of the form [function, key, value]", b)
	}
	*o = Op{}
	if err := json.Unmarshal(parts[0], &o.F); err != nil {
		return fmt.Errorf("operation %s: function: %w", b, err)
	}
	if err := json.Unmarshal(parts[1], &o.Key); err != nil {
		var n json.Number
		if json.Unmarshal(parts[1], &n) != nil {
			return fmt.Errorf("operation %s: key: %w", b, err)
		}
		o.Key = n.String()
	}
	var err error
	switch o.F {
	case Append, Write:
		err = json.Unmarshal(parts[2], &o.N)
	case Read:
		err = json.Unmarshal(parts[2], &o.State)
	case Lock:
	default:
		err = errors.New("unknown function")
	}
	if err != nil {
		return fmt.Errorf("operation %s: %w", b, err)
	}
	return nil
}

// A Writer writes records as lines. It may be used concurrently.
type Writer struct {
	mu sync.Mutex
	w  io.Writer
}

// NewWriter returns a Writer.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one record by one call of the underlying Write.
func (w *Writer) Write(r Record) error {
	if r.Value == nil {
		r.Value = []Op{}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err = w.w.Write(append(b, '\n'))
	return err
}

// ReadAll reads all records. If a line is wrong, the error names it, and the records
// before it are returned.
func ReadAll(r io.Reader) ([]Record, error) {
	var records []Record
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var rec Record
			if err := json.Unmarshal(line, &rec); err != nil {
				return records, fmt.Errorf("history, line %d: %w", n, err)
			}
			records = append(records, rec)
		}
		switch {
		case errors.Is(err, io.EOF):
			return records, nil
		case err != nil:
			return records, fmt.Errorf("history, line %d: %w", n, err)
		}
	}
}
