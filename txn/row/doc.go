// Package row reads and writes rows as structs. Tags name the cell of each field:
//
//	type User struct {
//		ID      string              `row:"key"`
//		Email   string              `row:"profile:email"`
//		Phone   *string             `row:"profile:phone"`
//		Born    time.Time           `row:"profile:born"`
//		Visits  int64               `row:"stats:visits"`
//		Address Address             `row:"profile:address,json"`
//		Roles   map[string]struct{} `row:"role:*"`
//	}
//
//	var users = row.MustTable[User]("users")
//
//	_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
//		users := users.In(tx)
//		bob, ok, err := users.Get(ctx, "bob")
//		if err != nil || !ok {
//			return err
//		}
//		bob.Visits++
//		return users.Set(ctx, bob) // writes stats:visits, and nothing else
//	})
//
// # Tags
//
// Exactly one field is the row key: a string with the tag "key". "family:qualifier" is one
// cell. "family:*" is a map with string keys: one cell for each key, which is the qualifier.
// A map to struct{} is a set. Its family belongs to that field alone. Fields without a tag
// do not take part. The fields of embedded structs count as fields of the struct.
//
// # Values
//
//	string                        its bytes
//	[]byte                        itself; nil is absent
//	int…, uint…, time.Duration    8 bytes, big-endian, as Bigtable's own counters
//	float32, float64              8 bytes, IEEE 754, big-endian
//	bool                          one byte, 0 or 1
//	time.Time                     RFC 3339 in UTC with nanoseconds, 2026-01-02T15:04:05.000000000Z
//	proto.Message                 protobuf; nil is absent
//	encoding.TextMarshaler        its text
//	*T                            as T; nil is absent
//
// After the cell's name, a tag may name another encoding: "json", "text" (decimal numbers,
// true and false), or "binary" (encoding.BinaryMarshaler). The encoding of a map applies to
// its elements; with a single cell, "json" stores a whole map.
//
// # Absent and empty
//
// A pointer, a []byte and a protobuf message distinguish an absent cell (nil) from an empty value. A
// field of any other type reads an absent cell as its zero value, and Set leaves the cell
// absent until the field changes: a new field of a struct changes no old rows. A row exists
// if any cell of its fields does.
//
// # Cost
//
// Get is one request. Set after Get or Scan in the same transaction is none; otherwise it
// reads the row, one request. Put never reads.
package row
