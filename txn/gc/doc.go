// Package gc collects the garbage of a deployment: the versions of cells that
// newer versions hide from every read that is still possible.
//
// # A run
//
//	plan, err := gc.Plan(ctx, client, gc.Config{})  // changes nothing
//	…
//	report, err := gc.Run(ctx, client, gc.Config{Retention: 72 * time.Hour})
//	var blocked *gc.BlockedError
//	switch {
//	case errors.As(err, &blocked):
//		// A transaction older than the retention is alive. Nothing was removed.
//	case err != nil:
//		// The next run continues where this one stopped.
//	default:
//		log.Print(report.Total.Versions, " versions removed")
//	}
//
// [Run] moves the deployment's safe point forward, waits until every client uses
// it, resolves the old locks, and then deletes. Reads below the safe point fail
// with txn.ErrTooOld from then on. [Plan] counts what a run would delete.
// [ReadStatus] says how far the last run is, and which clients hold the safe
// point back. percctl gc calls these three.
//
// # What it never does
//
// It never removes a version that a read at or above the safe point can see. It
// never rolls a live transaction back: if one blocks the run, the run stops with
// a [BlockedError]. It never touches data in columns that no transaction has
// committed, and removes other plain data only with [Config.Plain]. It uses no
// garbage-collection policy of Bigtable, and no family of a transactional table
// may have one.
//
// docs/gc.md explains the rules and the phases of a run.
package gc
