package admin_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestInitTableRefuses: a wrong description of a table is an error that names it.
func TestInitTableRefuses(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded())
	for _, spec := range []admin.TableSpec{
		{}, {Name: "percolator"}, {Name: "x", Families: []string{"_lock"}}, {Name: "x", Families: []string{"_ack"}}, {Name: "x", Families: []string{""}},
		{Name: "x", Observed: []txn.Column{{Family: "_write"}}},
	} {
		if err := admin.InitTable(ctx, env.Admin, env.Bigtable, "", spec); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	err := admin.InitTable(ctx, env.Admin, env.Bigtable, "", admin.TableSpec{Name: "x", Observed: []txn.Column{{Family: "nope", Qualifier: "q"}}})
	if !errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), "nope:q") {
		t.Error(err)
	}
}
