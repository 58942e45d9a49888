package server

// Between sets a function that runs between generating a range and checking that
// the lease is still valid. If unchecked, the server omits that check.
func (s *Server) Between(f func(), unchecked bool) {
	s.service.alloc.generated, s.service.alloc.unchecked = f, unchecked
}

// LimitClients replaces the bounds on connections, and on requests that run.
func (s *Server) LimitClients(connections, requests int) {
	l := s.service.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = counts{connections: connections, requests: requests}
}

// Nudge is what a request does that finds no leader.
func (s *Server) Nudge() { s.service.alloc.nudge() }
