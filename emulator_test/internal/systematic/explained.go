package systematic

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ExplainedFile is the list of survivors, in the module.
const ExplainedFile = "emulator_test/testdata/systematic/explained.txt"

// A List says of mutants why they may survive, by their keys. Most are equivalent: no
// test could notice them.
type List map[string]string

// ReadList reads a list. It has one paragraph for each reason: the mutants' keys, one a
// line, and then the indented reason. Lines that begin with # are comments.
func ReadList(path string) (List, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list := List{}
	for paragraph := range strings.SplitSeq(string(b), "\n\n") {
		var keys, why []string
		for line := range strings.SplitSeq(paragraph, "\n") {
			switch {
			case strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "":
			case strings.HasPrefix(line, "\t"):
				why = append(why, strings.TrimSpace(line))
			case len(why) > 0:
				return nil, fmt.Errorf("%s: %q follows a reason; begin a new paragraph", path, line)
			default:
				keys = append(keys, line)
			}
		}
		if len(keys) > 0 && len(why) == 0 {
			return nil, fmt.Errorf("%s: %q has no reason", path, keys[0])
		}
		for _, key := range keys {
			if list[key] != "" {
				return nil, fmt.Errorf("%s: %q occurs twice", path, key)
			}
			list[key] = strings.Join(why, " ")
		}
	}
	return list, nil
}

// Why returns the reason for the mutant with this key, or nothing.
func (l List) Why(key string) string { return l[key] }

// Check finds entries that match no mutant any more.
func (l List) Check(mutants []Mutant) error {
	known := map[string]bool{}
	for _, m := range mutants {
		known[m.Key()] = true
	}
	var stale []error
	for key := range l {
		if !known[key] {
			stale = append(stale, fmt.Errorf("the list of explained mutants has one that the code does not have any more: %q", key))
		}
	}
	return errors.Join(stale...)
}
