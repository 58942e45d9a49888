// Package defaults fills in the fields of this module's Config structs that are zero, and
// refuses those that are negative.
package defaults

import "fmt"

// Positive sets *value to def where it is zero. The error names the field where *value is
// negative.
func Positive[T ~int | ~int64 | ~float64](field string, value *T, def T) error {
	switch {
	case *value < 0:
		return fmt.Errorf("%s is %v; it has to be positive, or zero for its default", field, *value)
	case *value == 0:
		*value = def
	}
	return nil
}
