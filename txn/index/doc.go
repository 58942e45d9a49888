// Package index keeps unique and secondary indexes of tables in the transactions that write
// the tables.
//
//	indexes, err := index.New("indexes", "entry",
//		index.Index{Name: "users-by-email", Table: "users", Columns: []txn.Column{email}, Unique: true},
//		index.Index{Name: "orders-by-customer", Table: "orders", Columns: []txn.Column{customer, placed}},
//	)
//	…
//	indexes.Keep(client)
//
// From then on each commit of the client maintains the indexes: a write of an indexed column
// is enough. A second row with a key of a unique index fails with [UniqueError].
//
//	row, ok, err := indexes.At(snapshot).Get(ctx, "users-by-email", "bob@example.com")
//	for entry, err := range indexes.At(snapshot).Scan(ctx, "orders-by-customer", index.Query{Prefix: index.Key{"bob"}}) {
//
// # Building
//
// [Indexes.Create] builds an index while the table is read and written. It records one state
// after the other, because clients notice a state at different times:
//
//   - [DeleteOnly]: commits remove the entries of old keys, and add none. Otherwise one client
//     could add an entry, and another one that does not know the index would leave it there
//     when it changes the row.
//   - [Building]: commits maintain the index. When all of them do, Create adds the entries of
//     all rows.
//   - [Ready]: the index can be read.
//
// After each of the first two, Create waits until no commit can be under way whose client did
// not know the state. Each client reads the records at least every few seconds. A commit that
// knows the records as of S has to take its commit_ts before S + 10 s
// ([txn.Txn.CommitBefore]), or it fails with a conflict and is tried again. So each wait of
// 10 s relies on timestamps alone, and on no clock. [Indexes.Drop] removes an index in the
// same way; while it does, UniqueError may name a row that has just lost the key.
//
// The schema record of the table names the index. So a client without [Indexes.Keep] refuses to
// write its columns, once it has noticed: no commit relies on a schema record that it has read
// more than a minute ago, by its own clock. Create waits that long before it reads the rows. A client with Keep takes
// the definition from the record if New does not declare the index. Only if the keys come from
// a function that it does not have, or if it declares the index differently, it refuses
// ([ErrDefinition]).
//
// # Cost
//
// A commit that writes an indexed column reads the old values of its rows, one request for
// each table. If it adds a key to a unique index, it reads the entries, one request, at the
// same time if it writes all columns of the index. Each key that changes is one more row in
// the transaction. Columns of the index that it does not write are locked, so that two
// transactions cannot each change one column of a key.
package index
