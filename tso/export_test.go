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
