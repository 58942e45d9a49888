package traces

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A report has the traces that check found to be right.
type report struct {
	text             string
	commit, recovery picture
}

// check compares the traces with docs/observability.md.
func check(all spans) (r report, err error) {
	var text strings.Builder
	var errs []error
	for _, c := range []func(spans, *strings.Builder, *report) error{checkCommit, checkObserver, checkRecovery} {
		errs = append(errs, c(all, &text, &r))
	}
	r.text = text.String()
	return r, errors.Join(errs...)
}

// transfers returns the writer's commits, in order.
func transfers(all spans) spans {
	return all.named("transaction transfer").where(func(s *span) bool { return s.attrs["percolator.outcome"] == "committed" })
}

// checkCommit checks the tree of one commit.
func checkCommit(all spans, out *strings.Builder, r *report) error {
	roots := transfers(all)
	if len(roots) != changes {
		return fmt.Errorf("%d committed transfers, want %d", len(roots), changes)
	}
	// Check the first transfer. The second may find locks of the first, whose
	// secondaries are committed in the background.
	root := roots[0]
	trace := all.of(root.trace).ours()
	const want = `transaction transfer
  timestamp
    reserve timestamps
  read accounts
  read accounts
  commit
    prewrite accounts
    prewrite accounts
    prewrite ledger
    timestamp
      reserve timestamps
    commit primary accounts [commit point]
    commit secondaries
`
	if got := tree(trace, root, ""); got != want {
		return fmt.Errorf("the tree of a commit is\n%swant\n%s", got, want)
	}
	for _, key := range []string{"percolator.start_ts", "percolator.commit_ts", "percolator.attempt", "percolator.rows"} {
		if root.attrs[key] == "" || root.attrs[key] == "0" {
			return fmt.Errorf("the transaction's attribute %s is %q", key, root.attrs[key])
		}
	}
	secondaries, primary := trace.named("commit secondaries")[0], trace.named("commit primary accounts")[0]
	if secondaries.start.Before(primary.end) {
		return errors.New("the secondaries began before the primary was committed")
	}
	fmt.Fprintf(out, "commit: trace %s is\n%s", root.trace, want)
	r.commit = picture{title: "One commit", subtitle: "transfer: 3 rows in 2 tables, start_ts " + root.attrs["percolator.start_ts"] + ", commit_ts " + root.attrs["percolator.commit_ts"], parts: []part{{spans: trace}}}
	return nil
}

// tree returns the names of the spans below a span, as text. Concurrent siblings are in
// the order of their names.
func tree(all spans, s *span, indent string) string {
	var out strings.Builder
	out.WriteString(indent + s.name)
	for _, e := range s.events {
		fmt.Fprintf(&out, " [%s]", e.name)
	}
	out.WriteString("\n")
	kids := all.below(s)
	prewrites := kids.where(func(s *span) bool { return strings.HasPrefix(s.name, "prewrite") })
	slices.SortFunc(prewrites, func(a, b *span) int { return strings.Compare(a.name, b.name) })
	for _, k := range kids {
		if strings.HasPrefix(k.name, "prewrite") {
			k, prewrites = prewrites[0], prewrites[1:]
		}
		out.WriteString(tree(all, k, indent+"  "))
	}
	return out.String()
}

// checkObserver checks the runs of the observer, whose process is not the writer's.
// Each has one link for each change, to the transaction that wrote the change.
func checkObserver(all spans, out *strings.Builder, _ *report) error {
	runs := all.named("observe " + observerID).where(func(s *span) bool { return s.attrs["percolator.outcome"] == "committed" })
	if len(runs) != 2 {
		return fmt.Errorf("%d runs of the observer committed, want 2, one for each account", len(runs))
	}
	want := map[link]bool{}
	for _, t := range transfers(all) {
		want[link{t.trace, t.id}] = true
	}
	for _, run := range runs {
		got := map[link]bool{}
		for _, l := range run.links {
			got[l] = true
		}
		switch {
		case run.parent != "" || run.kind != "consumer":
			return fmt.Errorf("a run has parent %q and kind %s, want none and consumer", run.parent, run.kind)
		case !maps.Equal(got, want):
			return fmt.Errorf("a run's links are %v, want those to the transfers, %v", got, want)
		case run.instance == "" || run.instance == transfers(all)[0].instance:
			return fmt.Errorf("the run's process is %q, the writer's %q", run.instance, transfers(all)[0].instance)
		}
		fmt.Fprintf(out, "observer: trace %s, %d links to transactions of another process\n", run.trace, len(run.links))
	}
	return nil
}

// checkRecovery checks the reader that found a lock of the victim. It has a link to the
// victim's trace, in which the transaction has no end.
func checkRecovery(all spans, out *strings.Builder, r *report) error {
	resolved := all.where(func(s *span) bool {
		return s.name == "resolve lock accounts" && s.attrs["percolator.lock.action"] == "rolled back"
	})
	if len(resolved) != 1 || len(resolved[0].links) != 1 {
		return fmt.Errorf("%d locks rolled back by the reader, want 1 with 1 link", len(resolved))
	}
	s := resolved[0]
	victim := all.of(s.links[0].trace)
	prewrites := victim.where(func(v *span) bool { return strings.HasPrefix(v.name, "prewrite ") })
	switch {
	case len(prewrites) != 3:
		return fmt.Errorf("the trace of the lock's owner has %d prewrites, want 3", len(prewrites))
	case len(victim.where(func(v *span) bool { return strings.HasPrefix(v.name, "transaction") })) != 0:
		return errors.New("the transaction of the lock's owner has ended, but its process should have been killed")
	case victim[0].instance == s.instance:
		return errors.New("the lock's owner and the reader are one process")
	}
	reader := all.of(s.trace)
	parent := reader.where(func(p *span) bool { return p.id == s.parent })
	if len(parent) != 1 || parent[0].name != "read accounts" {
		return fmt.Errorf("the resolution's parent is %v, want the read that found the lock", parent)
	}
	fmt.Fprintf(out, "recovery: trace %s rolled a lock back and leads to trace %s, whose process was killed\n", s.trace, victim[0].trace)
	r.recovery = picture{
		title: "A crash and its recovery", subtitle: "a client is killed before its commit point; a reader finds its lock, waits for the rest of its ttl, and rolls it back",
		parts: []part{
			{label: "client that was killed: its transaction and its commit never ended", spans: victim.ours()},
			{label: "reader, in another process", spans: reader.where(func(s *span) bool { return s.scope != "" && !strings.HasPrefix(s.scope, "cloud.google.com/") }), link: s},
		},
	}
	return nil
}
