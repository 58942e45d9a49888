package txntest

import (
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// Strict returns options for [StartEmulator]. With them the emulator refuses what Cloud
// Bigtable refuses, with its error codes: filters that are too large, empty conditional
// mutations, unknown families and so on. docs/reference/assumptions.md lists the rules. [New] uses
// them by default.
//
// It also applies one of five mutations twice before it answers, as a service does that
// retries inside: no conditional mutation, and none with a timestamp of the server.
//
// Conditional mutations fail with app profiles that route to several clusters, if you name
// such profiles.
func Strict(severalClusters ...string) []grpc.ServerOption {
	return front.Options(strict.Front(strict.Config{SeveralClusters: severalClusters, Repeat: repeat}))
}

// Lenient starts the emulator of [New] without the rules of [Strict]. It implies [Embedded].
func Lenient() Option { return func(o *options) { o.lenient, o.embedded = true, true } }

// Permissions returns options for [StartEmulator] or [WithServerOptions]. With them the
// emulator refuses requests whose caller lacks a permission of IAM, as Cloud Bigtable does. of
// returns the permissions below bigtable.tables that a token gives on a table, or on the
// instance if table is "". An error refuses the token.
func Permissions(of func(token, table string) (permissions []string, err error)) []grpc.ServerOption {
	return front.Options(strict.Access(of))
}

// WithoutQuota turns off the rule of [Strict] that bounds changes of tables in a minute, for
// tests that make many tables at once.
func WithoutQuota() Option {
	return func(o *options) { o.without = append(o.without, strict.AdminQuota) }
}

// WithMaxRow lets reads of more than some bytes of one row fail, instead of more than 256 MB.
// So tests of large rows need less memory.
func WithMaxRow(bytes int) Option { return func(o *options) { o.maxRow = bytes } }

// A View is an authorized view: the rows of a table that begin with Prefix, a string, and some of its
// Families, a []string.
type View = strict.View

// Views returns options for [StartEmulator]. With them the emulator has authorized views,
// whose names are TABLE/VIEW, and refuses requests for the data of their tables, as if the
// caller had permissions on the views alone.
func Views(all map[string]View) []grpc.ServerOption { return front.Options(strict.Views(all)) }
