// Package recordpb holds the code that is generated from record.proto, which describes every
// stored record. txn/format, store, recovery and the packages above use it. It imports nothing
// of the module.
package recordpb

//go:generate go run -C ../../../.ci/tools ./protogen $PWD
