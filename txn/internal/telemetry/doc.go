// Package telemetry makes the spans, metrics and log attributes of package txn and the
// packages around it. docs/reference/telemetry.md lists them all.
//
// Every package above it uses it: store measures requests, recovery measures locks, and
// txn makes the spans of transactions. It imports the names of package format and nothing
// else of txn.
//
// It makes nothing that nobody records. A transaction asks the tracer once, and
// everything below it asks its parent span. Attributes of a metric are only made if the
// instrument is enabled.
package telemetry
