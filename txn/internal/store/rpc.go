package store

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// rpcError is a failed Bigtable request. It unwraps to the gRPC error, and to
// the context's error when that is why it failed: the Bigtable client reports
// an ended context as a gRPC status that errors.Is does not recognize (design
// §9).
type rpcError struct {
	op    string
	table string
	hint  string
	errs  []error
}

func (e *rpcError) Error() string {
	msg := fmt.Sprintf("txn: %s on table %q: %v", e.op, e.table, e.errs[len(e.errs)-1])
	if e.hint != "" {
		msg += " (" + e.hint + ")"
	}
	return msg
}

func (e *rpcError) Unwrap() []error { return e.errs }

// ErrorType is the name of the gRPC status for telemetry.
func (e *rpcError) ErrorType() string {
	return status.Code(e.errs[len(e.errs)-1]).String()
}

func WrapRPC(ctx context.Context, op, table string, err error) error {
	if err == nil {
		return nil
	}
	e := &rpcError{op: op, table: table}
	switch code := status.Code(err); {
	case ctx.Err() != nil:
		e.errs = append(e.errs, contextError(ctx))
	case code == codes.DeadlineExceeded:
		e.errs = append(e.errs, context.DeadlineExceeded)
	case code == codes.FailedPrecondition:
		e.hint = "transactions need an app profile with single-cluster routing and single-row transactions allowed"
	case code == codes.NotFound:
		e.hint = "create the table with `percctl table init` or txn.InitTable"
	}
	e.errs = append(e.errs, err)
	return e
}

// contextError is why ctx ended. The cause is text: it may be any error, also that
// of another transaction that an errgroup has cancelled this one for, and must not
// be taken for an answer to this one.
func contextError(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %v", ctx.Err(), cause)
	}
	return ctx.Err()
}

// Permanent reports that a request was refused: it was not applied, and
// sending it again will not help; so it is with what is too old to be sent. Every
// other error of a conditional mutation leaves open whether it was applied
// (design §4, unknown results).
func Permanent(err error) bool {
	if errors.Is(err, format.ErrTooOld) {
		return true
	}
	for _, e := range RPCErrors(err) {
		switch status.Code(e) {
		case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied,
			codes.FailedPrecondition, codes.Unimplemented, codes.Unauthenticated:
			return true
		}
	}
	return false
}

// Transient reports that reading again may help.
func Transient(err error) bool {
	var rpc *rpcError
	return errors.As(err, &rpc) && !Permanent(err)
}

// Refused reports that Bigtable would answer the same request in the same way.
func Refused(err error) bool {
	if errors.Is(err, format.ErrTooOld) {
		return false
	}
	for _, e := range RPCErrors(err) {
		if status.Code(e) == codes.ResourceExhausted || status.Code(e) == codes.OutOfRange {
			return true
		}
	}
	return Permanent(err)
}

func RPCErrors(err error) []error {
	var e *rpcError
	if errors.As(err, &e) {
		return e.errs
	}
	return []error{err}
}

// Ended returns err, made to satisfy errors.Is with the error of an ended
// context.
func Ended(ctx context.Context, doing string, last error) error {
	err := contextError(ctx)
	if last != nil && !errors.Is(last, ctx.Err()) {
		return fmt.Errorf("txn: %s: %w (last error: %w)", doing, err, last)
	}
	return fmt.Errorf("txn: %s: %w", doing, err)
}

// RequestTimedOut reports that a request has come to its own deadline, not to ctx's.
func RequestTimedOut(ctx context.Context, err error) bool {
	return ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)
}
