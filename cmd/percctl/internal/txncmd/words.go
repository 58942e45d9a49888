package txncmd

import (
	"fmt"
	"strings"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// explain says what the versions of one transaction in one cell mean
// (docs/storage-format.md, "What states look like").
func explain(at, primary txn.Cell, versions []admin.Version) *cell {
	c := &cell{Cell: at.String(), Primary: at == primary, Stored: []stored{}}
	has := map[admin.VersionKind]*admin.Version{}
	for i, v := range versions {
		c.Stored = append(c.Stored, stored{v.Family, v.TS, cli.Time(v.TS), v.Kind})
		has[v.Kind] = &versions[i]
	}
	data := "no data"
	if has[admin.VersionData] != nil {
		data = "data at start_ts"
	}
	var words []string
	say := func(state, format string, args ...any) {
		if c.State == "" {
			c.State = state
		} else if c.State != state {
			c.State = "damaged"
		}
		words = append(words, fmt.Sprintf(format, args...))
	}
	if l := has[admin.VersionLock]; l != nil {
		say("locked", "lock for a %v until %s, %s", l.Write, cli.Stamp(l.Lock.ExpiresTS()), data)
		mention(&words, l, primary)
	}
	if w := has[admin.VersionWrite]; w != nil {
		say("committed", "write record of a %v at %s, %s", w.Write, cli.Stamp(w.TS), data)
		mention(&words, w, primary)
	}
	if m := has[admin.VersionLockOnly]; m != nil {
		say("committed", "marker of a lock-only write at %s", cli.Stamp(m.TS))
		mention(&words, m, primary)
	}
	if has[admin.VersionRollback] != nil {
		say("rolled back", "rollback marker: it never commits")
	}
	if n := has[admin.VersionNotify]; n != nil {
		words = append(words, "notify cell for its observers")
	}
	if u := has[admin.VersionUnreadable]; u != nil {
		say("damaged", "unreadable: %s", cli.Line(u.Err.Error()))
	}
	if c.State == "" {
		say("damaged", "%s that belongs to no lock and no write record", data)
	}
	c.Words = strings.Join(words, "; ")
	return c
}

// mention says so when a cell names another primary than the one asked for.
func mention(words *[]string, v *admin.Version, primary txn.Cell) {
	if v.Primary != primary {
		*words = append(*words, fmt.Sprintf("names %s as its primary", v.Primary))
	}
}
