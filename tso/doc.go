// Package tso is the timestamp oracle: the clock that orders all transactions of
// a deployment.
//
//	client, err := bigtable.NewClient(ctx, project, instance)
//	...
//	oracle := tso.NewDirect(client.Open("percolator"), tso.DirectConfig{})
//	defer oracle.Close()
//
//	ts, err := oracle.Timestamp(ctx)
//	fmt.Println(ts, ts.Time()) // 1795152600000000 2026-11-20 05:30:00 +0000 UTC
//
// # Timestamps
//
// A [Timestamp] is an int64: microseconds since the Unix epoch, made strictly
// increasing by next = max(last+1, now). It reads as wall time, fits a Bigtable
// cell timestamp (see [Timestamp.Cell]), and lasts until 2262. At more than a
// million timestamps a second, or after a clock was set back, timestamps run
// ahead of the clock until the clock has caught up.
//
// # Guarantees
//
// Timestamps are strictly increasing in real time, across all processes: if a
// caller asks after another caller received its timestamp, the later one is
// larger. Ranges that processes allocate in advance would be unique, but would
// break this order. So would a number of a request that was already under way
// when its caller asked. Numbers may be skipped when a request fails or its
// caller leaves.
//
// # Direct mode
//
// [Direct] needs no service. The highest timestamp handed out is one cell,
// column "direct" of one row in the metadata table, and a reservation is one
// atomic operation on that row. Any number of processes may use it at the same
// time. It needs an app profile with single-cluster routing and single-row
// transactions.
//
// One reservation per process is in flight. Requests that arrive meanwhile form
// the next batch and share the next reservation. Before that is sent, the callers
// that the last one answered run first: those that ask again share it. So a process costs at most one
// reservation per round trip, whatever its load, and a request waits for one to
// two round trips. A batch costs, in requests to Bigtable:
//
//	1      usually, however many processes share the row
//	2      if another process moved the row to the clock at the same time
//	+2     after a pause longer than MaxStep: to confirm the clock
//	+1     the first batch of a process: to read the row
//
// A process moves the row to the clock by a conditional write: it matches if the
// row is below the new range. If other processes keep the row close to the clock,
// it increments the row instead, which concurrent requests cannot make fail. Both
// are needed: an increment cannot follow the clock, and if every process added the
// gap that it sees, oracle time would run ahead by the gap times the number of
// processes, and every lock would look expired. Processes that share the row let
// it lag the clock by up to 50 ms.
//
// All processes write one row. If it takes 1,000 mutations a second, about 100
// busy processes are its limit: timestamps are then 100 ms old when they arrive.
// Direct logs that, and measures it (percolator.oracle.direct.lag).
//
// The clocks of the processes decide how close timestamps are to real time, never
// their order. If a clock is ahead of the last timestamp by more than
// [DirectConfig].MaxStep, Direct compares it with Bigtable's own clock and
// follows the earlier one. It does not notice a clock that runs ahead in smaller
// steps: keep machines on NTP.
//
// # Served mode
//
// A server hands out timestamps from memory. Use servers for more timestamps than
// direct mode can give, or where a round trip to Bigtable for each batch takes too
// long. Any number of servers run; one leads, by a lease in the oracle's row, and
// the others stand by. `percctl tso serve` runs one; package tso/server is its
// library.
//
//	oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"tso-0:7070", "tso-1:7070"}})
//	...
//	defer oracle.Close()
//	client, err := txn.NewClient(ctx, bt, txn.Config{Oracle: oracle})
//
// The leader reserves ranges ahead of use, about three times per lease; requests
// never wait for that. A standby takes over when it has watched the lease
// unchanged for its full length, and starts above the reserved range. The leader
// stops before its lease can end. It checks the lease again after it generated a
// range, so that a process that was stopped does not answer from an old range.
// Clocks only decide how long this takes. It assumes that the clocks of two
// machines tick at rates that differ by less than a tenth, and run while a
// process is stopped.
//
// A [Client] sends one request at a time for all callers that wait. A caller that
// asks while a request is under way joins the next one, never that one. As in
// direct mode, callers that ask again share the next request.
//
// The oracle's row is in one of the two modes; [SetMode] switches, a [Follower]
// follows without an error, and [Advance]
// raises a row that was lost or restored. docs/oracle.md says what happens when
// something fails, and what to do. Package tso/format describes what is stored.
//
// # Locks
//
// [RowLocks] are the paper's lightweight lock service: advisory locks that expire,
// in the metadata table.
//
// # Local mode
//
// [Local] is an oracle in memory for tests. Its order ends with the process.
//
// # Errors
//
// Oracles retry temporary errors (unavailable, aborted, timed out), with backoff,
// until the caller's context ends, or for a [Client] its own timeout. Give the
// context a deadline. They return:
//
//   - context.Canceled, context.DeadlineExceeded: the caller's context ended;
//     the text has the last failure.
//   - [ErrClosed]: Close was called.
//   - [ErrNotInitialized]: the metadata table or the oracle's family is missing;
//     `percctl table init` creates them.
//   - [ErrMode], [*ModeError]: the row is in the other mode.
//   - [ErrCorrupt], [*CorruptError]: the row has a value that no oracle writes.
//   - [ErrFormat], [*FormatError]: another version wrote the row.
//   - [ErrUnavailable], [*UnavailableError]: no server answered in time; it
//     has each server's reason.
//   - [ErrBackwards], [*BackwardsError]: a server answered with a timestamp below
//     one that this client received before.
//   - [ErrExhausted]: the year is 2262.
//   - other errors: Bigtable refused the request permanently; errors.As finds the
//     gRPC status.
package tso
