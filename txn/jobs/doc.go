// Package jobs goes through large tables: [Partitions] divides a table, [Scan] reads its parts
// in parallel, and [Job] runs a function over every row in many bounded transactions, with
// progress, a rate, and resumption after a crash.
//
//	job := jobs.Job{Name: "lower-case emails", Table: "users", Progress: "jobs", Family: "job"}
//	_, err := job.Run(ctx, client, func(ctx context.Context, tx *txn.Txn, row bigtable.Row) error {
//		email := row["profile"][0].Value
//		tx.Table("users").Set(row.Key(), "profile", "email", bytes.ToLower(email))
//		return nil
//	})
//
// # What a job guarantees
//
// A job divides its range into parts, and takes each part in order of the keys. Each
// transaction handles the next rows of a part: it reads them, calls the function for each,
// and stores, in the same transaction, how far the part has come. From this follows:
//
//   - For every key of the range exactly one transaction commits that covers it, in all runs
//     of the job together: after crashes, after unknown outcomes, and if several processes
//     run the job at the same time.
//   - If the row is visible at that transaction's start timestamp, the function got it as of
//     then, and what the function wrote is committed. So the function's writes take effect
//     once for each row that exists from the start of the job to its end.
//   - A row that is inserted during the job is handled if its part has not come to its key
//     yet, and otherwise not. So first let all writers write the new form, then run the job.
//   - A cell that the function writes did not change between the read and the commit. A cell
//     that it only reads may have: lock it ([txn.Table.Lock]) if the result depends on it.
//   - The function may run several times for a row. Only its writes through the transaction
//     take effect once.
package jobs
