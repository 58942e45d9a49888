package format

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// A Kind says what a transaction does to a cell.
type Kind int8

// The kinds of writes.
const (
	KindPut    = Kind(recordpb.Kind_KIND_PUT)    // stores a value
	KindDelete = Kind(recordpb.Kind_KIND_DELETE) // makes the cell absent from commit_ts on
	KindLock   = Kind(recordpb.Kind_KIND_LOCK)   // changes nothing, but conflicts with every other write
)

// KindRollback is the kind of a rollback marker. No write has it.
const KindRollback = Kind(recordpb.Kind_KIND_ROLLBACK)

// String returns put, delete, lock or rollback.
func (k Kind) String() string {
	switch k {
	case KindPut:
		return "put"
	case KindDelete:
		return "delete"
	case KindLock:
		return "lock"
	case KindRollback:
		return "rollback"
	}
	return fmt.Sprintf("kind(%d)", int8(k))
}

// A WriteRecord is a stored record of an outcome. In [WriteFamily] it is a committed
// version of a cell. In [MarkFamily] it is a committed lock-only write or a rollback
// marker.
type WriteRecord struct {
	// CommitTS is where the record is stored. For a rollback marker it is equal to
	// StartTS.
	CommitTS tso.Timestamp
	// StartTS is the start_ts of the transaction. The value of a put is in the data cell
	// at StartTS.
	StartTS tso.Timestamp
	Kind    Kind
	// Primary is the primary cell of the transaction.
	Primary Cell
	// SettledBy is what shows that the transaction has no lock left: 0 (nothing), Alone, or the
	// number of a stored recordpb.Settled. Only a write record in the primary has it.
	SettledBy uint64
}

// Alone says that the transaction wrote only the primary's row. So its commit removed all locks.
const Alone = 1

// appendPrimary adds the field that points from a cell to its primary. It holds only the parts
// that differ, and is left out in the primary itself.
func appendPrimary(b []byte, field protowire.Number, cell, primary Cell) []byte {
	if cell == primary {
		return b
	}
	parts := [...]struct{ own, primary string }{ // by field of a CellRef
		{cell.Table, primary.Table}, {cell.Row, primary.Row}, {cell.Family, primary.Family}, {cell.Qualifier, primary.Qualifier},
	}
	n := 0
	for _, p := range parts {
		if p.own != p.primary {
			n += 1 + protowire.SizeBytes(len(p.primary))
		}
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(n))
	for i, p := range parts {
		if p.own != p.primary { // an empty part is a value here
			b = protowire.AppendString(protowire.AppendTag(b, protowire.Number(i+1), protowire.BytesType), p.primary)
		}
	}
	return b
}

// appendNumber adds a field, unless it is 0.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// appendText adds a field, unless it is empty.
func appendText(b []byte, field protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func followRef(cell Cell, ref *recordpb.CellRef) Cell {
	if ref == nil {
		return cell
	}
	if ref.Table != nil {
		cell.Table = *ref.Table
	}
	if ref.Row != nil {
		cell.Row = string(ref.Row)
	}
	if ref.Family != nil {
		cell.Family = *ref.Family
	}
	if ref.Qualifier != nil {
		cell.Qualifier = string(ref.Qualifier)
	}
	return cell
}

// Marshal returns the stored bytes of a record. It returns nil if a string in the record
// is not UTF-8, which [CheckCell] prevents; every reader refuses an empty record.
func Marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}

// EncodeCommit returns the record that the commit of one cell writes, and its family: a
// write record in [WriteFamily], or a mark in [MarkFamily] for a lock-only write.
func EncodeCommit(cell, primary Cell, kind Kind, startTS tso.Timestamp) (family string, value []byte) {
	return WriteRecord{StartTS: startTS, Kind: kind, Primary: primary}.Encode(cell)
}

// Encode returns the record of a commit of cell, and its family, as [EncodeCommit] does. It is a
// recordpb.Write or a recordpb.Mark. The protobuf library would allocate each part of it.
func (w WriteRecord) Encode(cell Cell) (family string, value []byte) {
	b := make([]byte, 0, recordBytes+len(w.Primary.Row))
	b = appendNumber(b, 1, Version)
	b = appendNumber(b, 2, uint64(w.Kind))
	b = appendNumber(b, 3, uint64(w.StartTS))
	b = appendPrimary(b, 4, cell, w.Primary)
	if w.Kind == KindLock {
		return MarkFamily, b
	}
	if cell == w.Primary {
		b = appendNumber(b, 5, w.SettledBy)
	}
	return WriteFamily, b
}

// recordBytes is about how long a record is, without row keys.
const recordBytes = 32

// EncodeRollback returns the record of a rollback marker. Its place is [MarkFamily] of
// the primary's row, at startTS.
func EncodeRollback(startTS tso.Timestamp) []byte {
	return Marshal(&recordpb.Mark{
		FormatVersion: Version,
		Kind:          recordpb.Kind_KIND_ROLLBACK,
		StartTs:       int64(startTS),
	})
}

// RecordRanges returns ranges of bytes, each [from, below), that contain every write record
// and mark of the transaction that started at startTS. They leave out other transactions'
// records, so that a read of the outcome does not return all later versions of the primary.
//
// A record that this library writes begins with format_version, kind and start_ts. Only a
// record that begins so, with another start_ts, is outside the ranges. Any other record is
// inside, whatever its start_ts: of another version, with its fields in another order, or
// damaged. The caller must still decode each record and compare its start_ts.
func RecordRanges(startTS tso.Timestamp) [][2][]byte {
	// A varint may be padded: its last byte then has another bit, and more bytes follow. So
	// the ranges do not depend on that byte.
	number := protowire.AppendVarint(nil, uint64(startTS))
	number = number[:len(number)-1]
	var ranges [][2][]byte
	var after []byte
	for k := KindPut; k <= KindRollback; k++ {
		header := []byte{1 << 3, Version, 2 << 3, byte(k), 3 << 3}
		own := slices.Concat(header, number)
		ranges = append(ranges, [2][]byte{after, header}, [2][]byte{own, successor(own)})
		after = successor(header)
	}
	return append(ranges, [2][]byte{after, nil})
}

// successor returns the smallest string above every string that begins with prefix, which
// has a byte below 0xff.
func successor(prefix []byte) []byte {
	n := len(prefix)
	for prefix[n-1] == 0xff {
		n--
	}
	next := slices.Clone(prefix[:n])
	next[n-1]++
	return next
}

// DecodeWrite reads the write record of cell that is stored at ts.
func DecodeWrite(cell Cell, ts tso.Timestamp, value []byte) (WriteRecord, error) {
	var m recordpb.Write
	if err := unmarshal(&m, cell, WriteFamily, ts, value); err != nil {
		return WriteRecord{}, err
	}
	k := Kind(m.Kind)
	if k != KindPut && k != KindDelete {
		return WriteRecord{}, Corruptf(cell, "the write record at %d has kind %v", ts, k)
	}
	return checkStartTS(cell, WriteRecord{CommitTS: ts, StartTS: tso.Timestamp(m.StartTs), Kind: k, Primary: followRef(cell, m.Primary), SettledBy: m.SettledBy})
}

// DecodeKindAndStart reads the kind and the start_ts of a write record, as [DecodeWrite]
// does. It skips what a read does not need, and allocates nothing. If the
// record is unusual in any way, it leaves it to DecodeWrite.
func DecodeKindAndStart(cell Cell, ts tso.Timestamp, value []byte) (kind Kind, startTS tso.Timestamp, err error) {
	var numbers [6]uint64 // by field: format_version, kind, start_ts, -, settled_by
	rest := value
	for len(rest) > 0 {
		field, wire, tag := protowire.ConsumeTag(rest)
		if tag < 0 {
			break
		}
		n := -1
		switch {
		case (field <= 3 || field == 5) && wire == protowire.VarintType:
			numbers[field], n = protowire.ConsumeVarint(rest[tag:])
		case field == 4 && wire == protowire.BytesType: // primary
			_, n = protowire.ConsumeBytes(rest[tag:])
		}
		if n < 0 {
			break // rest is not empty, so DecodeWrite reads the record
		}
		rest = rest[tag+n:]
	}
	kind, startTS = Kind(numbers[2]), tso.Timestamp(numbers[3])
	if len(rest) > 0 || numbers[1] != Version || (numbers[2] != uint64(KindPut) && numbers[2] != uint64(KindDelete)) || startTS <= 0 || startTS >= ts {
		w, err := DecodeWrite(cell, ts, value)
		return w.Kind, w.StartTS, err
	}
	return kind, startTS, nil
}

// DecodeMark reads the mark of cell that is stored at ts. Its kind is [KindLock] for a
// committed lock-only write and [KindRollback] for a rollback marker.
func DecodeMark(cell Cell, ts tso.Timestamp, value []byte) (WriteRecord, error) {
	var m recordpb.Mark
	if err := unmarshal(&m, cell, MarkFamily, ts, value); err != nil {
		return WriteRecord{}, err
	}
	r := WriteRecord{CommitTS: ts, StartTS: tso.Timestamp(m.StartTs), Kind: Kind(m.Kind), Primary: followRef(cell, m.Primary)}
	switch {
	case r.Kind == KindLock:
		return checkStartTS(cell, r)
	case r.Kind == KindRollback && r.StartTS == ts:
		return r, nil
	case r.Kind == KindRollback:
		return r, Corruptf(cell, "the rollback marker of start_ts %d is stored at %d", r.StartTS, ts)
	}
	return r, Corruptf(cell, "the mark at %d has kind %v", ts, r.Kind)
}

func checkStartTS(cell Cell, r WriteRecord) (WriteRecord, error) {
	if r.StartTS <= 0 || r.StartTS >= r.CommitTS {
		return r, Corruptf(cell, "the commit record at %d names start_ts %d, which must be positive and smaller", r.CommitTS, r.StartTS)
	}
	return r, nil
}

type versioned interface {
	proto.Message
	GetFormatVersion() uint32
}

func unmarshal(m versioned, cell Cell, family string, ts tso.Timestamp, value []byte) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return Corruptf(cell, "the record in family %s at %d does not parse: %v", family, ts, err)
	}
	if m.GetFormatVersion() == Version {
		return nil
	}
	return CheckVersion(m, fmt.Sprintf("record of %s in family %s at %d", cell, family, ts))
}

// CheckVersion returns an error if this library cannot read the record m, which name
// describes. The error matches [ErrCorrupt] if the record has no format version, and
// [ErrFormatVersion] if it has a later one.
func CheckVersion(m interface{ GetFormatVersion() uint32 }, name string) error {
	known := uint32(Version)
	if _, ok := m.(*recordpb.Lock); ok {
		known = passableVersion
	}
	switch v := m.GetFormatVersion(); {
	case v == 0:
		return fmt.Errorf("%w: %s has no format version", ErrCorrupt, name)
	case v > known:
		return fmt.Errorf("%w: %s has format version %d, this library knows versions up to %d: upgrade it", ErrFormatVersion, name, v, known)
	}
	return nil
}
