package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// The families that hold a table's metadata columns (design §3). Their
// qualifiers are family:qualifier of the user's column; the acknowledgment
// family's have /observer behind it.
const (
	LockFamily   = "_lock"
	WriteFamily  = "_write"
	MarkFamily   = "_mark"
	NotifyFamily = "_notify"
	AckFamily    = "_ack"
)

// FormatVersion is the storage format this package reads and writes.
const Version = 1

// metadataFamilies are the families that every transactional table has. The
// acknowledgment family holds Percolator columns like any other and counts as
// a data family.
var MetadataFamilies = []string{LockFamily, WriteFamily, MarkFamily, NotifyFamily, AckFamily}

func IsMetadataFamily(f string) bool {
	switch f {
	case LockFamily, WriteFamily, MarkFamily, NotifyFamily:
		return true
	}
	return false
}

// prePercolator ends the range of cell timestamps of data that was in the
// table before it was adopted: wall-clock microseconds are about 1.8e15, and
// the smallest cell timestamp of ours is about 1.8e18 (design §2).
const PlainBefore bigtable.Timestamp = 1e17

// A Kind says what a transaction does to a cell.
type Kind int8

// The kinds of writes.
const (
	KindPut    = Kind(recordpb.Kind_KIND_PUT)    // a value
	KindDelete = Kind(recordpb.Kind_KIND_DELETE) // absent from commit_ts on
	KindLock   = Kind(recordpb.Kind_KIND_LOCK)   // nothing changes, but every other write conflicts
)

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

// A Lock is a stored lock: an unfinished write of one cell.
type Lock struct {
	Cell    Cell
	StartTS tso.Timestamp
	// Primary is the cell whose state decides the transaction's fate; equal to
	// Cell in the primary lock itself.
	Primary Cell
	Kind    Kind
	// TTL is counted from StartTS in oracle time. Only the primary's decides,
	// unless there is nothing at the primary.
	TTL time.Duration
	// Owner is the token of the client that wrote the lock; may be empty.
	Owner string
	// Observed says that whoever commits the cell sets its notify cell.
	Observed bool
	// TraceParent is the W3C trace context of the transaction; may be empty.
	TraceParent string
	// Hops is how many runs of observers, one causing the next, led to the
	// transaction.
	Hops int
	// Passable: readers may pass the primary lock by raising MinCommitTS, up to
	// and including which the transaction does not commit any more; Raises counts
	// that (Config.PassLocks).
	Passable    bool
	MinCommitTS tso.Timestamp
	Raises      int

	// Record is that of a passable lock, as it is stored.
	Record string
}

// IsPrimary reports whether the lock is its transaction's primary lock.
func (l *Lock) IsPrimary() bool { return l.Cell == l.Primary }

// ExpiresTS is the oracle time from which others may roll the lock back.
func (l *Lock) ExpiresTS() tso.Timestamp {
	return l.StartTS + tso.Timestamp(l.TTL.Microseconds())
}

// WriteRecord is a committed version of a cell, or, in the mark family, a
// lock-only commit.
type WriteRecord struct {
	CommitTS tso.Timestamp
	StartTS  tso.Timestamp
	Kind     Kind
	Primary  Cell
}

// primaryRef is the compact pointer from a cell to its primary: only the parts
// that differ, and nothing at all in the primary itself.
func primaryRef(cell, primary Cell) *recordpb.CellRef {
	if cell == primary {
		return nil
	}
	return newRef(cell, primary)
}

func newRef(cell, primary Cell) *recordpb.CellRef {
	ref := &recordpb.CellRef{}
	if primary.Table != cell.Table {
		ref.Table = &primary.Table
	}
	if primary.Row != cell.Row {
		ref.Row = []byte(primary.Row)
	}
	if primary.Family != cell.Family {
		ref.Family = &primary.Family
	}
	if primary.Qualifier != cell.Qualifier {
		// An empty qualifier is a value here and must not read as absent.
		ref.Qualifier = append([]byte{}, primary.Qualifier...)
	}
	return ref
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

// Marshal serializes a record. The messages hold nothing that can fail to
// marshal but strings that are not UTF-8, and those are checked on input.
func Marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		// Reached only by a table or family name that is not UTF-8, which
		// checkCell refuses; an empty record is refused by every reader.
		return nil
	}
	return b
}

func EncodeLock(l *Lock) []byte {
	version := uint32(Version)
	if l.Passable {
		version = 0 // in the header
	}
	rest := Marshal(&recordpb.Lock{
		FormatVersion: version,
		Kind:          recordpb.Kind(l.Kind),
		Primary:       primaryRef(l.Cell, l.Primary),
		TtlMicros:     l.TTL.Microseconds(),
		Owner:         l.Owner,
		Observed:      l.Observed,
		TraceParent:   l.TraceParent,
		Hops:          uint32(l.Hops),
		Raises:        uint32(l.Raises),
	})
	if l.Passable {
		// The parts of a message may stand one after the other.
		return append(PassableHeader(l.MinCommitTS), rest...)
	}
	return rest
}

func DecodeLock(cell Cell, ts tso.Timestamp, value []byte) (*Lock, error) {
	var m recordpb.Lock
	if err := unmarshal(&m, cell, LockFamily, ts, value); err != nil {
		return nil, err
	}
	switch k := Kind(m.Kind); k {
	case KindPut, KindDelete, KindLock:
	default:
		return nil, Corruptf(cell, "lock record at %d is of kind %v", ts, k)
	}
	minCommit, passable, err := decodePassable(cell, ts, &m, value)
	if err != nil {
		return nil, err
	}
	record := ""
	if passable {
		record = string(value)
	}
	return &Lock{
		Record:      record,
		Passable:    passable,
		MinCommitTS: minCommit,
		Raises:      int(m.Raises),
		Cell:        cell,
		StartTS:     ts,
		Primary:     followRef(cell, m.Primary),
		Kind:        Kind(m.Kind),
		TTL:         time.Duration(m.TtlMicros) * time.Microsecond,
		Owner:       m.Owner,
		Observed:    m.Observed,
		TraceParent: m.TraceParent,
		Hops:        int(m.Hops),
	}, nil
}

// EncodeCommit serializes the record a commit leaves behind: a write record,
// or a mark for a lock-only write.
func EncodeCommit(cell, primary Cell, kind Kind, startTS tso.Timestamp) (family string, value []byte) {
	if kind == KindLock {
		return MarkFamily, Marshal(&recordpb.Mark{
			FormatVersion: Version,
			Kind:          recordpb.Kind_KIND_LOCK,
			StartTs:       int64(startTS),
			Primary:       primaryRef(cell, primary),
		})
	}
	return WriteFamily, Marshal(&recordpb.Write{
		FormatVersion: Version,
		Kind:          recordpb.Kind(kind),
		StartTs:       int64(startTS),
		Primary:       primaryRef(cell, primary),
	})
}

func EncodeRollback(startTS tso.Timestamp) []byte {
	return Marshal(&recordpb.Mark{
		FormatVersion: Version,
		Kind:          recordpb.Kind_KIND_ROLLBACK,
		StartTs:       int64(startTS),
	})
}

func DecodeWrite(cell Cell, ts tso.Timestamp, value []byte) (WriteRecord, error) {
	var m recordpb.Write
	if err := unmarshal(&m, cell, WriteFamily, ts, value); err != nil {
		return WriteRecord{}, err
	}
	k := Kind(m.Kind)
	if k != KindPut && k != KindDelete {
		return WriteRecord{}, Corruptf(cell, "write record at %d is of kind %v", ts, k)
	}
	return checkStartTS(cell, WriteRecord{ts, tso.Timestamp(m.StartTs), k, followRef(cell, m.Primary)})
}

// DecodeKindAndStart is decodeWrite without the primary, which a read does not need. It
// reads a record field by field, and leaves what it does not know to decodeWrite.
func DecodeKindAndStart(cell Cell, ts tso.Timestamp, value []byte) (kind Kind, startTS tso.Timestamp, err error) {
	var numbers [4]uint64 // by field: format_version, kind, start_ts
	rest := value
	for len(rest) > 0 {
		field, wire, n := protowire.ConsumeTag(rest)
		if n < 0 {
			break
		}
		rest = rest[n:]
		switch {
		case field <= 3 && wire == protowire.VarintType:
			numbers[field], n = protowire.ConsumeVarint(rest)
		case field == 4 && wire == protowire.BytesType: // primary
			_, n = protowire.ConsumeBytes(rest)
		default:
			n = -1
		}
		if n < 0 {
			break
		}
		rest = rest[n:]
	}
	kind, startTS = Kind(numbers[2]), tso.Timestamp(numbers[3])
	if len(rest) > 0 || numbers[1] != Version || (numbers[2] != uint64(KindPut) && numbers[2] != uint64(KindDelete)) || startTS <= 0 || startTS >= ts {
		w, err := DecodeWrite(cell, ts, value)
		return w.Kind, w.StartTS, err
	}
	return kind, startTS, nil
}

func DecodeMark(cell Cell, ts tso.Timestamp, value []byte) (WriteRecord, error) {
	var m recordpb.Mark
	if err := unmarshal(&m, cell, MarkFamily, ts, value); err != nil {
		return WriteRecord{}, err
	}
	r := WriteRecord{ts, tso.Timestamp(m.StartTs), Kind(m.Kind), followRef(cell, m.Primary)}
	switch {
	case r.Kind == KindLock:
		return checkStartTS(cell, r)
	case r.Kind == KindRollback && r.StartTS == ts:
		return r, nil
	case r.Kind == KindRollback:
		return r, Corruptf(cell, "rollback marker of start_ts %d stands at %d", r.StartTS, ts)
	}
	return r, Corruptf(cell, "mark at %d is of kind %v", ts, r.Kind)
}

func checkStartTS(cell Cell, r WriteRecord) (WriteRecord, error) {
	if r.StartTS <= 0 || r.StartTS >= r.CommitTS {
		return r, Corruptf(cell, "commit record at %d names start_ts %d", r.CommitTS, r.StartTS)
	}
	return r, nil
}

type versioned interface {
	proto.Message
	GetFormatVersion() uint32
}

func unmarshal(m versioned, cell Cell, family string, ts tso.Timestamp, value []byte) error {
	if err := proto.Unmarshal(value, m); err != nil {
		return Corruptf(cell, "record in family %s at %d does not parse: %v", family, ts, err)
	}
	if m.GetFormatVersion() == Version {
		return nil
	}
	return CheckVersion(m, fmt.Sprintf("record of %s in family %s at %d", cell, family, ts))
}

func CheckVersion(m versioned, where string) error {
	known := uint32(Version)
	if _, ok := m.(*recordpb.Lock); ok {
		known = passableVersion
	}
	switch v := m.GetFormatVersion(); {
	case v == 0:
		return fmt.Errorf("%w: %s has no format version", ErrCorrupt, where)
	case v > known:
		return fmt.Errorf("%w: %s has format version %d, this library knows up to %d: upgrade it", ErrFormatVersion, where, v, known)
	}
	return nil
}

// passableVersion is the format version of a lock record with a minimum. Clients
// that do not know it refuse the record, and with it the lock.
const passableVersion = 2

// PassableHeader begins the record of a passable lock: format_version 2 and
// min_commit. Records compare by their bytes as their minima do.
func PassableHeader(minCommit tso.Timestamp) []byte {
	return binary.BigEndian.AppendUint64([]byte{1 << 3, passableVersion, 9<<3 | 2, 8}, uint64(minCommit))
}

func decodePassable(cell Cell, ts tso.Timestamp, m *recordpb.Lock, value []byte) (minCommit tso.Timestamp, passable bool, err error) {
	if m.FormatVersion < passableVersion {
		if len(m.MinCommit) > 0 || m.Raises > 0 {
			return 0, false, Corruptf(cell, "lock record at %d of format version %d has a minimum commit_ts", ts, m.FormatVersion)
		}
		return 0, false, nil
	}
	if len(m.MinCommit) == 8 {
		minCommit = tso.Timestamp(binary.BigEndian.Uint64(m.MinCommit))
	}
	if minCommit < 0 || !bytes.HasPrefix(value, PassableHeader(minCommit)) || m.Primary != nil {
		return 0, false, Corruptf(cell, "lock record at %d does not begin with a minimum commit_ts, or is no primary's", ts)
	}
	return minCommit, true, nil
}

// MetadataCell undoes the qualifier of a metadata column.
func MetadataCell(table, row string, item bigtable.ReadItem) (Column, Cell, error) {
	_, key, _ := strings.Cut(item.Column, ":")
	c, ok := SplitColumn(key)
	if !ok {
		return c, Cell{}, Corruptf(Cell{Table: table, Row: row}, "metadata column %q does not name a family:qualifier", item.Column)
	}
	return c, Cell{table, row, c.Family, c.Qualifier}, nil
}

// FindItem looks a column up in one family of a row.
func FindItem(items []bigtable.ReadItem, column string) (bigtable.ReadItem, bool) {
	if i, ok := ItemIndex(items, column); ok {
		return items[i], true
	}
	return bigtable.ReadItem{}, false
}

// ItemIndex is where a column is in one family of a row, which Bigtable returns
// in order of its columns.
func ItemIndex(items []bigtable.ReadItem, column string) (int, bool) {
	return slices.BinarySearchFunc(items, column, func(it bigtable.ReadItem, c string) int {
		return strings.Compare(it.Column, c)
	})
}

// DefaultMetadataTable is the name of the metadata table where Config does not
// say another.
const DefaultMetadataTable = "percolator"
