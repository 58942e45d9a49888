package conformance

import "slices"

// All returns the assumptions in the order in which Run tests them.
func All() []Assumption {
	return slices.Concat(conditional, whole, cells, filters, ranges, streams, bulk, sizes, refusals, load, costs, tables)
}
