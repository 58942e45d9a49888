// Package format describes what Percolator stores in Bigtable: the names of families,
// cells and columns, the records of locks, commits, marks and notifications, and the
// limits on their sizes. It also holds the errors and statuses that these records lead
// to. docs/storage-format.md describes the same for operators.
//
// # Who uses it
//
// An application rarely imports this package: package txn has aliases for what an
// application needs, such as txn.Cell and txn.ErrConflict. A program that reads or checks
// stored data itself uses the names and the Decode functions. The Encode functions are
// for the library.
//
// # Conventions
//
// A timestamp is a [tso.Timestamp], in microseconds. The Bigtable cell of timestamp ts is
// at ts × 1000 (ts.Cell()), because Bigtable rounds to milliseconds.
//
// A Decode function reports damaged data as a [CorruptError] that names the cell. It
// reports data of a later format as an error that matches [ErrFormatVersion]. It never
// panics.
//
// This package imports package tso and the generated records, and no other package of
// the module.
package format
