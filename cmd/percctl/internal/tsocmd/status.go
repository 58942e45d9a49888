package tsocmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

type statusOptions struct {
	bigtable connect.Flags
	client   clientFlags
	format   cli.Format
}

func newStatusCmd(s *cli.Streams) *cobra.Command {
	opts := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the oracle's row and its servers",
		Long: `Show the oracle's row and the state of its servers. For the leader these are its
epoch, the rest of its reserved range, the rate of timestamps, and the lag of oracle
time behind its clock. Without --server, the command asks the leader that the row names.
Without --project and --instance, it asks only the servers.

Exit status 4: the oracle is in served mode and no server leads. 5: no server
answers.`,
		Example: `  percctl tso status
  percctl tso status --server tso-0:7070,tso-1:7070 -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return coded(status(cmd.Context(), s, opts)) },
	}
	opts.bigtable.Add(cmd.Flags())
	opts.client.add(cmd.Flags())
	cli.FormatFlag(cmd, &opts.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[Report]())
	return cmd
}

// A Report is the state of the oracle.
type Report struct {
	Row      *RowReport     `json:"row,omitempty"`       // the oracle's row; left out if Bigtable was not asked
	RowError string         `json:"row_error,omitempty"` // why there is no row
	Leader   string         `json:"leader"`              // address of the leading server; empty if none leads
	Servers  []ServerReport `json:"servers"`             // servers that were asked
}

// A ServerReport is the state of one server.
type ServerReport struct {
	Address       string  `json:"address"`                             // address of the server, host:port
	Error         string  `json:"error,omitempty"`                     // why the server did not answer; then the other fields are empty
	Server        string  `json:"server,omitempty"`                    // name of the server
	Leading       bool    `json:"leading"`                             // whether it leads
	Reason        string  `json:"reason,omitempty"`                    // why it does not lead
	Epoch         uint64  `json:"epoch,omitempty" unit:"-"`            // number of its present or last term in the row; each change of leader raises it
	Terms         uint64  `json:"terms"`                               // times that it became leader since it started
	Next          int64   `json:"next,omitempty" unit:"µs since 1970"` // next timestamp that it hands out
	RangeLeft     int64   `json:"range_left,omitempty"`                // timestamps left in the range that it has reserved
	Lag           float64 `json:"lag_seconds,omitempty"`               // how far oracle time is behind the clock of the server; negative if ahead
	LeaseLeft     float64 `json:"lease_left_seconds,omitempty"`        // time until another server may take over, unless it renews its lease
	Rate          float64 `json:"timestamps_per_second"`               // timestamps that it hands out
	Timestamps    uint64  `json:"timestamps"`                          // timestamps handed out since it started
	Requests      uint64  `json:"requests"`                            // requests answered since it started
	BigtableRPCs  uint64  `json:"bigtable_rpcs"`                       // requests to Bigtable since it started
	BigtableWrite uint64  `json:"bigtable_writes"`                     // writes to Bigtable since it started
	Uptime        float64 `json:"uptime_seconds"`                      // time since it started
}

func status(ctx context.Context, s *cli.Streams, opts *statusOptions) error {
	if err := opts.client.check(); err != nil {
		return err
	}
	if !opts.bigtable.Given() && len(opts.client.servers) == 0 {
		return cli.Usagef("no oracle: add --server, or --project and --instance")
	}
	r := Report{Servers: []ServerReport{}}
	servers := opts.client.servers
	var rowErr error // the servers are asked all the same: they may know more
	if opts.bigtable.Given() {
		var state tso.RowState
		var lag time.Duration
		switch state, lag, rowErr = readRow(ctx, opts); {
		case rowErr != nil && len(servers) == 0:
			return rowErr
		case rowErr != nil:
			r.RowError = rowErr.Error()
		default:
			row := newRowReport(state)
			row.Lag = lag.Seconds()
			r.Row = &row
			if len(servers) == 0 && state.Mode == tso.ModeServed && state.Address != "" {
				servers = []string{state.Address}
			}
		}
	}
	creds, err := opts.client.tls.client()
	if err != nil {
		return err
	}
	r.ask(ctx, servers, creds, opts.client.timeout)
	if err := cli.Print(s.Out, opts.format, r, func(w io.Writer) error { return printStatus(w, r) }); err != nil {
		return err
	}
	if len(opts.client.servers) > 0 && r.silent() {
		return cmp.Or(rowErr, errSilent) // who names servers wants to know about these
	}
	return cmp.Or(rowErr, r.verdict())
}

var errSilent error = &cli.Error{Code: cli.ExitUnavailable, Err: errors.New("no server answers: check their addresses and logs, and --tls flags")}

// silent reports whether servers were asked, and none answered.
func (r *Report) silent() bool {
	return len(r.Servers) > 0 && !slices.ContainsFunc(r.Servers, func(s ServerReport) bool { return s.Error == "" })
}

// verdict is the error that the exit code comes from.
func (r *Report) verdict() error {
	switch {
	case r.Leader != "":
		return nil
	case r.Row != nil && r.Row.Mode != string(tso.ModeServed):
		return nil
	case r.silent():
		return errSilent
	}
	return &cli.Error{Code: cli.ExitFound, Err: errors.New("no server leads, so no transaction can begin: start one with percctl tso serve")}
}

func readRow(ctx context.Context, opts *statusOptions) (s tso.RowState, lag time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, opts.client.timeout)
	defer cancel()
	err = opts.bigtable.Answered(ctx, func(ctx context.Context) error {
		table, closeTable, err := opts.bigtable.OpenMetadata(ctx)
		if err != nil {
			return err
		}
		defer closeTable()
		s, lag, err = look(ctx, table)
		return err
	})
	return s, lag, err
}

// Look reads the oracle's row and asks the servers that the flags name, or the
// one that leads. Each answer that is missing says why.
func Look(ctx context.Context, meta bigtable.TableAPI, flags *connect.OracleFlags) (*Report, error) {
	r := &Report{Servers: []ServerReport{}}
	state, lag, err := look(ctx, meta)
	if err != nil {
		return nil, err
	}
	row := newRowReport(state)
	r.Row = &row
	row.Lag = lag.Seconds()
	if state.Mode != tso.ModeServed || (state.Address == "" && flags.Servers == "") {
		return r, nil
	}
	cfg, err := flags.ClientConfig(state.Address)
	if err != nil {
		return nil, err
	}
	r.ask(ctx, cfg.Addresses, cfg.Credentials, answerTimeout)
	return r, nil
}

// look reads the oracle's row, and measures how far its timestamps are behind the clock.
func look(ctx context.Context, meta bigtable.TableAPI) (s tso.RowState, lag time.Duration, err error) {
	if s, err = tso.ReadRow(ctx, meta, tso.RowConfig{}); err == nil && s.Mode == tso.ModeDirect {
		lag, _, err = tso.DirectLag(ctx, meta, tso.RowConfig{})
	}
	return s, lag, err
}

// answerTimeout is how long one server is waited for.
const answerTimeout = 3 * time.Second

// ask asks the servers.
func (r *Report) ask(ctx context.Context, servers []string, creds credentials.TransportCredentials, timeout time.Duration) {
	r.Servers = make([]ServerReport, len(servers))
	var wg sync.WaitGroup
	for i, address := range servers {
		wg.Go(func() {
			// One that hangs must not keep the others' answers.
			ctx, cancel := context.WithTimeout(ctx, min(timeout, answerTimeout))
			defer cancel()
			st, err := tso.ServerStatus(ctx, tso.ClientConfig{Addresses: []string{address}, Credentials: creds})
			r.Servers[i] = newServerReport(address, st, err)
		})
	}
	wg.Wait()
	for _, s := range r.Servers {
		if s.Leading {
			r.Leader = s.Address
		}
	}
}

func newServerReport(address string, st tso.Status, err error) ServerReport {
	if err != nil {
		return ServerReport{Address: address, Error: err.Error()}
	}
	r := ServerReport{
		Address: address, Server: st.Server, Leading: st.Leading, Reason: st.Reason, Epoch: st.Epoch, Terms: st.Terms,
		Rate: st.Rate, Timestamps: st.Timestamps, Requests: st.Requests, BigtableRPCs: st.BigtableRPCs, BigtableWrite: st.BigtableWrites,
		Uptime: st.Uptime.Seconds(),
	}
	if st.Leading {
		r.Next = int64(st.Next)
		r.RangeLeft = int64(st.Limit - st.Next + 1)
		r.Lag = st.Lag().Seconds()
		r.LeaseLeft = st.LeaseLeft.Seconds()
	}
	return r
}

func printStatus(w io.Writer, r Report) error {
	if r.Row != nil {
		if err := r.Row.text(w); err != nil {
			return err
		}
		if len(r.Servers) > 0 {
			fmt.Fprintln(w)
		}
	}
	if len(r.Servers) == 0 {
		return nil
	}
	t := cli.NewTable(w)
	cli.WriteRow(t, "SERVER", "ADDRESS", "STATE", "EPOCH", "RANGE LEFT", "RATE/S", "LAG", "LEASE LEFT", "TIMESTAMPS")
	for _, sv := range r.Servers {
		switch {
		case sv.Error != "":
			cli.WriteRow(t, "?", sv.Address, "unreachable: "+sv.Error)
		case !sv.Leading:
			cli.WriteRow(t, sv.Server, sv.Address, sv.Reason)
		default:
			cli.WriteRow(t, sv.Server, sv.Address, "leading", strconv.FormatUint(sv.Epoch, 10), strconv.FormatInt(sv.RangeLeft, 10),
				strconv.FormatFloat(sv.Rate, 'f', 0, 64), seconds(sv.Lag), seconds(sv.LeaseLeft),
				strconv.FormatUint(sv.Timestamps, 10))
		}
	}
	return t.Flush()
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond).String()
}
