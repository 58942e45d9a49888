// Command linearizable judges recorded histories with porcupine, a checker that others wrote
// (https://github.com/anishathalye/porcupine). It shares no code with package history, not
// even the parser.
//
// Usage: linearizable [-timeout 60s] FILE… (lines of JSON, as lab soak --history writes them)
//
// Each key is judged alone, as a register or a list that transactions read and change in one
// step, at one moment between their begin and their end. Exit status 1: a key is not
// linearizable, or a file cannot be read. 2: porcupine did not decide about a key in time.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A record is the begin or the end of a transaction.
type record struct {
	Type    string               `json:"type"`
	Process int                  `json:"process"`
	Time    int64                `json:"time"`
	Value   [][3]json.RawMessage `json:"value"`
}

// A step is what a transaction does with one key: "r", "w" or "append".
type step struct {
	what  string
	value string // JSON; of a read "" if it is not known
}

const nothing = "null"

// apply returns the state after a transaction's steps, and whether its reads agree with it.
func apply(state string, steps []step) (string, bool) {
	for _, s := range steps {
		switch s.what {
		case "r":
			if s.value != "" && s.value != state {
				return state, false
			}
		case "w":
			state = s.value
		case "append":
			if state == nothing {
				state = "[" + s.value + "]"
			} else {
				state = state[:len(state)-1] + "," + s.value + "]"
			}
		}
	}
	return state, true
}

var model = porcupine.Model{
	Init: func() any { return nothing },
	Step: func(state, input, _ any) (bool, any) {
		next, ok := apply(state.(string), input.([]step))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
}

// operations returns what happened to each key.
func operations(r io.Reader) (map[string][]porcupine.Operation, error) {
	keys := map[string][]porcupine.Operation{}
	open := map[int]record{}
	add := func(begin record, ops [][3]json.RawMessage, end int64, known bool) error {
		steps := map[string][]step{}
		for _, op := range ops {
			var what string
			if err := json.Unmarshal(op[0], &what); err != nil {
				return err
			}
			s := step{what: what}
			switch what {
			case "lock":
				continue
			case "r":
				if !known {
					continue
				}
				if s.value = string(op[2]); s.value == "[]" {
					s.value = nothing
				}
			case "w", "append":
				s.value = string(op[2])
			default:
				return fmt.Errorf("unknown function %q", what)
			}
			key := string(op[1])
			steps[key] = append(steps[key], s)
		}
		for key, s := range steps {
			keys[key] = append(keys[key], porcupine.Operation{Input: s, Call: begin.Time, Return: end})
		}
		return nil
	}
	decoder := json.NewDecoder(r)
	for {
		var r record
		if err := decoder.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		begin, ok := open[r.Process]
		if r.Type == "invoke" {
			if ok {
				return nil, fmt.Errorf("process %d has two transactions at a time", r.Process)
			}
			open[r.Process] = r
			continue
		}
		if !ok {
			return nil, fmt.Errorf("the transaction of process %d has no begin", r.Process)
		}
		switch r.Type {
		case "ok":
			if err := add(begin, r.Value, r.Time, true); err != nil {
				return nil, err
			}
		case "fail":
		case "info": // stays open: it may take effect at any later time, or never
			continue
		default:
			return nil, fmt.Errorf("unknown type %q", r.Type)
		}
		delete(open, r.Process)
	}
	for _, begin := range open {
		if err := add(begin, begin.Value, math.MaxInt64, false); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// judge prints a line about the history, and returns the exit status.
func judge(name string, r io.Reader, timeout time.Duration) int {
	keys, err := operations(r)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	var wrong, undecided []string
	count := 0
	for key, ops := range keys {
		count += len(ops)
		switch porcupine.CheckOperationsTimeout(model, ops, timeout) {
		case porcupine.Illegal:
			wrong = append(wrong, key)
		case porcupine.Unknown:
			undecided = append(undecided, key)
		}
	}
	slices.Sort(wrong)
	slices.Sort(undecided)
	fmt.Printf("%s: %d keys, %d operations, not linearizable: %v, not decided: %v\n", name, len(keys), count, wrong, undecided)
	switch {
	case len(wrong) > 0 || count == 0:
		return 1
	case len(undecided) > 0:
		return 2
	}
	return 0
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "how long porcupine may think about a key")
	flag.Parse()
	status := 0
	for _, name := range flag.Args() {
		f, err := os.Open(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if s := judge(name, f, *timeout); status != 1 && s != 0 {
			status = s
		}
		f.Close()
	}
	if flag.NArg() == 0 {
		flag.Usage()
		status = 1
	}
	os.Exit(status)
}
