// Package transfer writes the committed rows of a table, as of one timestamp, to a file,
// and writes the rows of such a file into a table. percctl export and import use it.
//
//	w, err := transfer.NewWriter(file, transfer.NewHeader("accounts", ts, "", ""))
//	…
//	err = w.Export(ctx, client, nil)
//	…
//	r, err := transfer.NewReader("accounts.jsonl", file)
//	…
//	result, err := transfer.Import(ctx, client, "copy", r.All(), transfer.ImportConfig{})
//
// The file has lines of JSON: a header, a line for each row in ascending order of keys,
// and a trailer with counts and a checksum. Bytes that are printable text stand as strings,
// others in base64 under a name that says so, as do those that escapes would make longer.
// A file without a trailer is incomplete, and
// [Resume] continues it. The file has no earlier versions, locks or deletions.
package transfer
