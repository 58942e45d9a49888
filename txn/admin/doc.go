// Package admin is for operators of a deployment: it makes tables transactional,
// shows what is stored, checks it, and repairs it. percctl is built on it.
//
// # Make a table, and check it
//
//	err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{
//		Name:     "accounts",
//		Families: []string{"bal"},
//	})
//	…
//	client, err := txn.NewClient(ctx, bt, txn.Config{Admin: btAdmin})
//	…
//	for violation, err := range admin.Check(ctx, client, "accounts", nil) {
//		…
//	}
//
// The functions come in four groups.
//
//   - Tables: [InitTable], [PlanAdoption] and [Adopt], [UndoAdoption], [Tables],
//     [Describe], [BulkLoad].
//   - Locks and transactions: [Locks], [Resolve], [ResolveTransaction],
//     [TransactionStatus], [ReadOwner], [Workers].
//   - Stored cells: [History], [TransactionVersions], [RawWrites], [SampleRows], [Parts].
//   - Consistency: [Check], [PlanRepairs], [ApplyRepair].
//
// The packages below this one build on them: doctor checks a whole deployment, capacity
// computes what a workload needs, and transfer writes tables to files and back.
//
// A function that makes or adopts a table takes Bigtable's own clients, because
// there may be no metadata table yet. Every other function takes a *txn.Client.
//
// # What it never does
//
// It changes no committed value, and resolves no lock of a live owner. Functions that read
// or plan change nothing. It repairs only what can be repaired without a guess, and
// leaves the rest to people.
//
// docs/operations.md says what to do when something is stuck, docs/adoption.md how
// to adopt a table, and docs/storage-format.md what the stored cells mean.
package admin
