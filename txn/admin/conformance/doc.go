// Package conformance tests whether a Bigtable service keeps what transactions rely on:
// Cloud Bigtable, an emulator, or any other service with its API. `percctl conformance`
// prints what it finds.
//
// [All] lists the assumptions, and docs/reference/assumptions.md describes them. [Run] tests them in a
// table of its own, and removes the table again:
//
//	report, err := conformance.Run(ctx, client, adminClient, conformance.Config{})
//	if err == nil && len(report.Broken) == 0 {
//		// Transactions are safe on this service.
//	}
//
// The package uses only the Bigtable client. It sends a bounded number of requests, which
// [EstimateFor] returns before.
package conformance
