package store

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// An rpcError is a failed Bigtable request. It unwraps to the gRPC error. If the request
// failed because a context ended, it also unwraps to the context's error: the Bigtable client
// reports that as a gRPC status that errors.Is does not recognize (design §9).
type rpcError struct {
	op    string
	table string
	hint  string  // what to do; may be empty
	errs  []error // the last is the gRPC error
}

func (e *rpcError) Error() string {
	msg := fmt.Sprintf("percolator: %s on table %q: %v", e.op, e.table, e.errs[len(e.errs)-1])
	if e.hint != "" {
		msg += " (" + e.hint + ")"
	}
	return msg
}

func (e *rpcError) Unwrap() []error { return e.errs }

// ErrorType returns the name of the gRPC status for telemetry.
func (e *rpcError) ErrorType() string {
	return status.Code(e.errs[len(e.errs)-1]).String()
}

// WrapRPC returns the error of a request as one that names the operation and the table. It
// returns nil if err is nil. ctx is the caller's context, without the request's own deadline.
// Only if ctx has ended, the result matches a context's error.
func WrapRPC(ctx context.Context, op, table string, err error) error {
	if err == nil {
		return nil
	}
	e := &rpcError{op: op, table: table}
	if errors.Is(err, context.DeadlineExceeded) {
		err = status.Error(codes.DeadlineExceeded, err.Error())
	}
	switch code := status.Code(err); {
	case ctx.Err() != nil:
		e.errs = append(e.errs, contextError(ctx))
	case code == codes.DeadlineExceeded:
		e.hint = "the request's own deadline, not the caller's"
	case code == codes.FailedPrecondition && op == readOp:
		e.hint = "Bigtable returns at most 256 MB of a row: read fewer versions or columns of it; percctl gc status names rows that are too large"
	case code == codes.FailedPrecondition:
		e.hint = "transactions need an app profile with single-cluster routing and single-row transactions allowed"
	case code == codes.NotFound:
		e.hint = "create the table with `percctl table init` or admin.InitTable"
	}
	e.errs = append(e.errs, err)
	return e
}

// contextError returns the reason why ctx ended. The cause is only a part of the text, and
// errors.Is does not find it. It may be any error. For example, an errgroup cancels a
// transaction with the error of another one, which is no answer to this one.
func contextError(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %v", ctx.Err(), cause)
	}
	return ctx.Err()
}

// Permanent reports whether Bigtable refused a request for good: it did not apply the
// request, and sending it again will not help. The same holds for a format.ErrTooOld. After
// any other error of a conditional mutation, it is unknown whether Bigtable applied it
// (design §4, unknown results).
func Permanent(err error) bool {
	if err == nil {
		return false
	}
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

// readOp is the operation of WrapRPC for reads of rows.
const readOp = "read"

// RowTooLarge reports whether a read may have failed because Bigtable does not return that much of a
// row. The error does not say which row.
func RowTooLarge(err error) bool {
	var e *rpcError
	return errors.As(err, &e) && e.op == readOp && status.Code(e.errs[len(e.errs)-1]) == codes.FailedPrecondition
}

// Transient reports whether a request failed in a way that another try may help.
func Transient(err error) bool {
	var rpc *rpcError
	return errors.As(err, &rpc) && !Permanent(err)
}

// Refused reports whether Bigtable would answer the same request in the same way.
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

// RPCErrors returns the errors that a failed Bigtable request unwraps to. Any other error is
// returned alone.
func RPCErrors(err error) []error {
	var e *rpcError
	if errors.As(err, &e) {
		return e.errs
	}
	return []error{err}
}

// Ended returns the error of an operation that ended with its context: errors.Is with the
// context's error holds. doing names the package and says what the operation did, and last
// is its last error, or nil.
func Ended(ctx context.Context, doing string, last error) error {
	err := contextError(ctx)
	if last != nil && !errors.Is(last, ctx.Err()) {
		return fmt.Errorf("%s: %w (last error: %w)", doing, err, last)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// CutShort reports whether a request for many rows failed in a way that need not happen again:
// the rows that have arrived count, and another request continues after them.
func CutShort(ctx context.Context, err error) bool {
	return err != nil && worthRetrying(ctx, err)
}
