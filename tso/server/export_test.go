package server

// Between sets a function that runs between generating a range and checking that
// the lease is still valid. If unchecked, the server omits that check.
func (s *Server) Between(f func(), unchecked bool) {
	s.service.alloc.generated, s.service.alloc.unchecked = f, unchecked
}

// LimitSubscribers replaces the bound on subscribers.
func (s *Server) LimitSubscribers(n int) { s.service.hints.MaxSubscribers = n }

// LimitClients replaces the bounds on connections, and on requests that run.
func (s *Server) LimitClients(connections, requests int) {
	l := s.service.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = counts{connections: connections, requests: requests}
}

// LimitHintBytes replaces the bound on the memory of hints.
func (s *Server) LimitHintBytes(n int) { s.service.hints.MaxBytes = n }

// Nudge is what a request does that finds no leader.
func (s *Server) Nudge() { s.service.alloc.nudge() }
