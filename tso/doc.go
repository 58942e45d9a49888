// Package tso is the timestamp oracle: the one clock that orders all
// transactions of a deployment.
//
//	client, err := bigtable.NewClient(ctx, project, instance)
//	...
//	oracle := tso.NewDirect(client.Open("percolator"), tso.DirectConfig{})
//	defer oracle.Close()
//
//	ts, err := oracle.Timestamp(ctx)
//	fmt.Println(ts, ts.Time()) // 1795152600000000 2026-11-20 05:30:00 +0000 UTC
//
// # What a timestamp is
//
// A [Timestamp] is an int64: microseconds since the Unix epoch, made strictly
// increasing by next = max(last+1, now). It reads as wall time, fits a Bigtable
// cell timestamp (see [Timestamp.Cell]), and lasts until 2262. When more than a
// million a second are asked for, or the clock steps back, it runs ahead of the
// clock until the clock has caught up.
//
// # What an oracle guarantees
//
// Timestamps are strictly increasing in real time, across every process: a
// timestamp asked for after another one was received is larger. Ranges that
// processes allocate in advance would be unique and would still break this, and
// so would giving a number of a request in flight to a caller who came later.
// Numbers may be skipped, whenever a request fails or its caller leaves.
//
// # Direct mode
//
// [Direct] needs no service. The highest timestamp handed out is one cell,
// column "direct" of one row in the metadata table, and a reservation is one
// atomic operation on that row. It is safe from any number of processes, and
// needs an app profile with single-cluster routing and single-row transactions.
//
// One reservation is in flight per process. Requests that arrive meanwhile form
// the next batch and share the next reservation, so that a process costs at
// most one reservation per round trip, whatever its load. A request waits for
// one to two round trips. A batch costs, in requests to Bigtable:
//
//	1      a process that has the oracle to itself; or a busy shared row
//	2      a shared row at low load: one to reserve, one to catch up with the clock
//	3      the first time another process is noticed
//	+2     after a pause longer than MaxStep: to confirm the clock
//	+1     the first batch of a process: to read the row
//
// A process that knows the row's value compares and sets: one request, exactly
// max(last+1, now), and no more than that however many processes come back from
// a stall at once. A process that does not know it increments, which cannot
// fail because of others, and if the result lags the clock by more than 5 ms it
// compares and sets once from there. Neither is enough alone: an increment
// cannot follow the clock, and letting every process add the gap it sees would
// push the oracle ahead by the gap times the number of processes, which makes
// every lock look expired.
//
// Clocks of the processes decide how close timestamps are to real time, never
// their order. A clock ahead of the last timestamp by more than
// [DirectConfig].MaxStep is confirmed with Bigtable's own clock before it is
// followed, and the earlier of the two counts. A clock that runs ahead in
// smaller steps is not noticed: keep machines on NTP.
//
// # Served mode
//
// A [Server] hands out timestamps from memory, for more than direct mode can,
// or where a round trip to Bigtable for each batch is too long. Any number of
// servers run; one leads, by a lease in the oracle's row, and the others stand
// by. `percctl tso serve` runs one.
//
//	oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"tso-0:7070", "tso-1:7070"}})
//	...
//	defer oracle.Close()
//	client, err := txn.NewClient(ctx, bt, txn.Config{Oracle: oracle})
//
// The leader reserves ranges ahead of use, by CheckAndMutateRow, about three
// times per lease; requests never wait for that. A standby takes over when it
// has watched the lease unchanged for its full length, and starts above the
// range reserved; the leader stops before its lease could be over, and checks
// once more after it generated a range, so that a process which was stopped
// does not answer from an old one. Clocks decide nothing about this but how
// long things take; what is assumed is that two clocks tick at rates that
// differ by less than a tenth, and go on while a process is stopped.
//
// A [Client] sends one request at a time for all who ask at once. Who asks while
// a request is under way gets into the next, never into that one.
//
// The two modes exclude each other through the row; [SetMode] switches.
// docs/oracle.md says what happens when something fails, and what to do.
//
// # Locks
//
// [Locks] are the paper's lightweight lock service: advisory, with a time to
// live, in memory, in the metadata table, or with the leading server.
//
// # Hints
//
// [Hints] carry word of new work to those who look for it, so that they need not
// wait for their next look: within a process by [MemoryHints], between processes
// by a [Client] through the leading server. They are best effort, and all of
// them may be lost.
//
// # Local mode
//
// [Local] is an oracle in memory for tests. Its order ends with the process.
//
// # Errors
//
// Errors that may pass (unavailable, aborted, timed out) are retried inside,
// with backoff, until the caller's context ends, or for a [Client] its own
// timeout; give it a deadline. What is returned:
//
//   - context.Canceled, context.DeadlineExceeded: the caller's context ended;
//     the text carries the last failure.
//   - [ErrClosed]: Close was called.
//   - [ErrNotInitialized]: the metadata table or the oracle's family is missing;
//     `percctl table init` creates them.
//   - [ErrMode], [*ModeError]: the row belongs to an oracle of the other mode.
//   - [ErrCorrupt], [*CorruptError]: the row holds what no oracle writes.
//   - [ErrFormat], [*FormatError]: the row was written by another version.
//   - [ErrUnavailable], [*UnavailableError]: no server answered in time; it
//     names each server's reason.
//   - [ErrBackwards], [*BackwardsError]: a server answered below what this
//     client was given before.
//   - [ErrExhausted]: the year is 2262.
//   - anything else: Bigtable refused the request for good; errors.As finds the
//     gRPC status.
package tso
