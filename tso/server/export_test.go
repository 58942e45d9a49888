package server

// Between sets a function that runs between generating a range and checking that
// the lease is still valid. If unchecked, the server omits that check.
func (s *Server) Between(f func(), unchecked bool) {
	s.service.alloc.generated, s.service.alloc.unchecked = f, unchecked
}

// LimitSubscribers replaces the bound on subscribers.
func (s *Server) LimitSubscribers(n int) { s.service.hints.MaxSubscribers = n }
