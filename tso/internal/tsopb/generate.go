// Package tsopb holds the generated code of the oracle's stored state and of
// its service, see tso.proto.
package tsopb

//go:generate go run -C ../../../.ci/tools ./protogen $PWD
