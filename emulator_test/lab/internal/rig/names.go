package rig

import "fmt"

// Family is the family of every column that a measurement reads or writes.
const Family = "f"

// KeyOf returns the key of the i-th row of a table, in order.
func KeyOf(i int) string { return fmt.Sprintf("row%08d", i) }

// ColumnOf returns the name of the q-th column.
func ColumnOf(q int) string { return fmt.Sprintf("q%03d", q) }
