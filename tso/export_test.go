package tso

// Between sets what runs between generating a range and checking that the lease
// still stands; unchecked leaves that check out.
func (s *Server) Between(f func(), unchecked bool) {
	s.lead.generated, s.lead.unchecked = f, unchecked
}

// Same compares what the row says, without the bytes of the lease.
func (s RowState) Same(other RowState) bool {
	s.lease, other.lease = lease{}, lease{}
	return s == other
}

// MaxHintsWaiting is the capacity of a queue for hints.
const MaxHintsWaiting = maxHintsWaiting

// MaxHintBatch is how many hints one message has at most.
const MaxHintBatch = maxHintBatch

// LimitSubscribers replaces the bound on subscribers.
func (s *Server) LimitSubscribers(n int) { s.hints.limit = n }
