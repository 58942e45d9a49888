// Package connect finds the Bigtable instance that a command works on, and
// opens clients for it.
package connect

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/pflag"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/embedded"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/rowcodec"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Flags say where Bigtable is. A flag comes before its environment variable,
// and that before ~/.cbtrc, the configuration of cbt.
type Flags struct {
	Project, Instance, AppProfile, MetadataTable string

	// Embedded: an emulator inside the process, see package embedded.
	Embedded bool

	// Oracle says how to reach a served oracle; all empty is what its row says.
	Oracle OracleFlags

	// Emulator is the address of an emulator. Defaults to BIGTABLE_EMULATOR_HOST.
	Emulator string

	// Options are for the connections of Open's clients.
	Options []grpc.DialOption

	// Without a flag.
	creds, endpoint, adminEndpoint, views string

	embedded *embedded.Deployment // set by Open
	answers  *answers
}

// Add adds the flags to a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Project, "project", "", "Google Cloud project of the Bigtable instance (PERCCTL_PROJECT, GOOGLE_CLOUD_PROJECT, project in ~/.cbtrc)")
	flags.StringVar(&f.Instance, "instance", "", "Bigtable instance (PERCCTL_INSTANCE, instance in ~/.cbtrc)")
	flags.StringVar(&f.AppProfile, "app-profile", "", "app profile of Bigtable, with single-cluster routing and single-row transactions (PERCCTL_APP_PROFILE)")
	flags.StringVar(&f.MetadataTable, "metadata-table", "", "metadata table of the deployment (PERCCTL_METADATA_TABLE; default "+format.DefaultMetadataTable+")")
}

// A Setting is one setting and where its value came from.
type Setting struct {
	Name   string `json:"name"`   // name of the setting
	Value  string `json:"value"`  // its value; empty if it is not set
	Source string `json:"source"` // where the value came from: a flag, an environment variable, `~/.cbtrc`, `default`, or `not set`
}

// setting says where a value can come from, in order.
type setting struct {
	name  string
	value *string
	flag  bool
	env   []string
	rc    string // the key in ~/.cbtrc
	def   string
}

func (f *Flags) settings() []setting {
	return []setting{
		{"project", &f.Project, true, []string{"PERCCTL_PROJECT", "GOOGLE_CLOUD_PROJECT"}, "project", ""},
		{"instance", &f.Instance, true, []string{"PERCCTL_INSTANCE"}, "instance", ""},
		{"app-profile", &f.AppProfile, true, []string{"PERCCTL_APP_PROFILE"}, "", ""},
		{"metadata-table", &f.MetadataTable, true, []string{"PERCCTL_METADATA_TABLE"}, "", format.DefaultMetadataTable},
		{"creds", &f.creds, false, []string{"PERCCTL_CREDS"}, "creds", ""},
		{"data-endpoint", &f.endpoint, false, []string{"PERCCTL_DATA_ENDPOINT"}, "data-endpoint", ""},
		{"admin-endpoint", &f.adminEndpoint, false, []string{"PERCCTL_ADMIN_ENDPOINT"}, "admin-endpoint", ""},
		{"views", &f.views, false, []string{"PERCCTL_VIEWS"}, "", ""},
		{"emulator", &f.Emulator, false, []string{"BIGTABLE_EMULATOR_HOST"}, "", ""},
		{"oracle", &f.Oracle.Servers, true, []string{"PERCCTL_ORACLE"}, "", ""},
		{"oracle-ca", &f.Oracle.CA, true, []string{"PERCCTL_ORACLE_CA"}, "", ""},
		{"oracle-cert", &f.Oracle.Cert, true, []string{"PERCCTL_ORACLE_CERT"}, "", ""},
		{"oracle-key", &f.Oracle.Key, true, []string{"PERCCTL_ORACLE_KEY"}, "", ""},
	}
}

// Settings fills in what no flag gave, and says where each value came from. It
// fails when ~/.cbtrc cannot be read.
func (f *Flags) Settings() ([]Setting, error) {
	rc, err := readCbtrc()
	if err != nil {
		return nil, err
	}
	var all []Setting
	for _, s := range f.settings() {
		source := ""
		use := func(value, from string) {
			if source == "" && value != "" {
				*s.value, source = value, from
			}
		}
		if s.flag || s.value == &f.Emulator {
			use(*s.value, "--"+s.name)
		}
		for _, name := range s.env {
			use(os.Getenv(name), name)
		}
		if s.rc != "" {
			use(rc[s.rc], "~/.cbtrc")
		}
		use(s.def, "default")
		if source == "" {
			source = "not set"
		}
		all = append(all, Setting{s.name, *s.value, source})
	}
	return all, nil
}

// Resolve fills in what no flag gave. It fails, with a message that says what
// to set, when project or instance are not to be found.
func (f *Flags) Resolve() error {
	if _, err := f.Settings(); err != nil {
		return err
	}
	if _, err := f.viewOf(); err != nil {
		return err
	}
	if f.Embedded {
		f.Project, f.Instance = embedded.Project, embedded.Instance
	}
	if f.Project == "" || f.Instance == "" {
		return cli.Usagef("no Bigtable instance: set --project and --instance (or PERCCTL_PROJECT and PERCCTL_INSTANCE, or ~/.cbtrc; with BIGTABLE_EMULATOR_HOST use any names). To try without one, add --embedded, or run percctl demo")
	}
	return nil
}

// viewOf returns the authorized view of each table that has one.
func (f *Flags) viewOf() (map[string]string, error) {
	all := map[string]string{}
	if f.views == "" {
		return all, nil
	}
	for part := range strings.SplitSeq(f.views, ",") {
		table, view, _ := strings.Cut(strings.TrimSpace(part), "=")
		if table == "" || view == "" {
			return nil, cli.Usagef("PERCCTL_VIEWS: %q is not of the form TABLE=VIEW,TABLE=VIEW", f.views)
		}
		all[table] = view
	}
	return all, nil
}

// Tables opens tables through their authorized views, if PERCCTL_VIEWS names some.
func (f *Flags) Tables(bt *bigtable.Client) txn.Tables {
	all, err := f.viewOf()
	if err != nil || len(all) == 0 {
		return bt // Resolve has reported the error
	}
	return throughViews{bt, all}
}

type throughViews struct {
	*bigtable.Client
	views map[string]string // by table
}

func (v throughViews) OpenTable(name string) bigtable.TableAPI {
	if view := v.views[name]; view != "" {
		return v.OpenAuthorizedView(name, view)
	}
	return v.Client.OpenTable(name)
}

// Given reports whether flags, environment or ~/.cbtrc name an instance.
func (f *Flags) Given() bool { return f.Resolve() == nil }

// readCbtrc reads ~/.cbtrc: lines of key = value. A missing file is empty.
func readCbtrc() (map[string]string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, nil //nolint:nilerr // without a home there is no file in it
	}
	path := filepath.Join(home, ".cbtrc")
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return parseCbtrc(path, file)
}

func parseCbtrc(path string, r io.Reader) (map[string]string, error) {
	rc := map[string]string{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			// Not the line: it may be a token.
			return nil, cli.Usagef("%s:%d: the line is not of the form key = value", path, n)
		}
		rc[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return rc, lines.Err()
}

// options returns the options of a client for an endpoint. Everything else (proxies, quota
// project, universe domain) Google's libraries take from the environment.
func (f *Flags) options(endpoint string) ([]option.ClientOption, error) {
	if f.Emulator != "" {
		return nil, nil // it is reached without credentials, at its own address
	}
	var opts []option.ClientOption
	if f.answers != nil {
		opts = append(opts, option.WithGRPCDialOption(grpc.WithStatsHandler(f.answers)))
	}
	if f.creds != "" {
		kind, err := credentialsType(f.creds)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithAuthCredentialsFile(kind, f.creds))
	}
	if endpoint != "" {
		opts = append(opts, option.WithEndpoint(endpoint))
	}
	return opts, nil
}

// credentialsType returns what a file of credentials says that it contains.
func credentialsType(path string) (option.CredentialsType, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", cli.Usagef("credentials (PERCCTL_CREDS, creds in ~/.cbtrc): %w", err)
	}
	var file struct {
		Type option.CredentialsType `json:"type"`
	}
	if err := json.Unmarshal(text, &file); err != nil || file.Type == "" {
		// Not the text: it may be a key.
		return "", cli.Usagef("credentials (PERCCTL_CREDS, creds in ~/.cbtrc): %s is no JSON file with a type, as gcloud makes it", path)
	}
	return file.Type, nil
}

// prepare fills in what no flag gave, and asks whether an emulator is there.
func (f *Flags) prepare(ctx context.Context) error {
	if err := f.Resolve(); err != nil {
		return err
	}
	if f.answers == nil || f.Emulator == "" || f.Embedded {
		return nil
	}
	return f.answers.knock(ctx, f.Emulator)
}

// Open connects to the data and the admin service. Call the function it
// returns when done.
func (f *Flags) Open(ctx context.Context) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	if err := f.prepare(ctx); err != nil {
		return nil, nil, nil, err
	}
	if r, ok := ctx.Value(reuseKey{}).(reuse); ok {
		return r.bt, r.admin, func() {}, nil
	}
	if !f.Embedded {
		return f.Dial(ctx, f.Options...)
	}
	var err error
	if f.embedded, err = embedded.Start(ctx, f.MetadataTable); err != nil {
		return nil, nil, nil, f.failed(err)
	}
	bt, admin, _, err := f.Dial(ctx, f.Options...)
	return bt, admin, f.embedded.Close, err
}

type reuseKey struct{}

type reuse struct {
	bt    *bigtable.Client
	admin *bigtable.AdminClient
}

// Reuse returns a context in which Open returns these clients, and does not close them.
func Reuse(ctx context.Context, bt *bigtable.Client, admin *bigtable.AdminClient) context.Context {
	return context.WithValue(ctx, reuseKey{}, reuse{bt, admin})
}

// Dial opens clients over connections of their own, with these options. Call it after Open,
// and the function it returns when done.
func (f *Flags) Dial(ctx context.Context, opts ...grpc.DialOption) (bt *bigtable.Client, admin *bigtable.AdminClient, end func(), err error) {
	end = func() {}
	switch {
	case f.embedded != nil:
		bt, admin, err = f.embedded.Open(ctx, opts...)
	case f.Emulator != "" && (len(opts) > 0 || f.AppProfile == ""):
		// Bigtable's client passes no options to an emulator, and takes no answer of more than
		// 4 MB from it. An emulator sends each row in one answer.
		var conn *grpc.ClientConn
		if conn, err = txntest.Dial(f.Emulator, opts...); err == nil {
			bt, admin, err = txntest.Open(ctx, conn, f.Project, f.Instance)
			end = func() { _, _, _ = bt.Close(), admin.Close(), conn.Close() }
		}
	default:
		var all []option.ClientOption
		for _, o := range opts {
			all = append(all, option.WithGRPCDialOption(o))
		}
		var admins []option.ClientOption
		if admins, err = f.options(f.adminEndpoint); err != nil {
			break
		}
		if bt, err = f.newClient(ctx, all...); err != nil {
			break
		}
		if admin, err = bigtable.NewAdminClient(ctx, f.Project, f.Instance, append(admins, all...)...); err != nil {
			err = errors.Join(err, bt.Close())
			break
		}
		end = func() { _, _ = bt.Close(), admin.Close() }
	}
	if err != nil {
		return nil, nil, nil, f.failed(err)
	}
	return bt, admin, end, nil
}

// DialAs is Dial with a file of credentials of another account.
func (f *Flags) DialAs(creds string) conformance.Connect {
	return func(ctx context.Context, opts ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
		other := *f
		other.creds = creds
		return other.Dial(ctx, opts...)
	}
}

// newClient connects to the data service.
func (f *Flags) newClient(ctx context.Context, opts ...option.ClientOption) (*bigtable.Client, error) {
	own, err := f.options(f.endpoint)
	if err != nil {
		return nil, err
	}
	return bigtable.NewClientWithConfig(ctx, f.Project, f.Instance, bigtable.ClientConfig{
		AppProfile:      f.AppProfile,
		MetricsProvider: bigtable.NoopMetricsProvider{},
		DisableSession:  true,
	}, append(append(own, option.WithGRPCDialOption(rowcodec.DialOption())), opts...)...)
}

// OpenMetadata connects to the metadata table alone, which needs fewer permissions than
// Open. Call the function it returns when done.
func (f *Flags) OpenMetadata(ctx context.Context) (*bigtable.Table, func(), error) {
	if err := f.prepare(ctx); err != nil {
		return nil, nil, err
	}
	bt, err := f.newClient(ctx)
	if err != nil {
		return nil, nil, f.failed(err)
	}
	return bt.Open(f.MetadataTable), func() { _ = bt.Close() }, nil
}

func (f *Flags) failed(err error) error {
	var usage *cli.Error
	if errors.As(err, &usage) {
		return err
	}
	return &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("%s, %v: %w", f.address(), f, err)}
}

// OpenInstance connects to the service that administers instances, which says
// what app profiles are. The client has to be closed.
func (f *Flags) OpenInstance(ctx context.Context) (*bigtable.InstanceAdminClient, error) {
	own := *f // doctor's checks read the flags while one of them comes here
	if err := own.Resolve(); err != nil {
		return nil, err
	}
	opts, err := own.options(own.adminEndpoint)
	if err != nil {
		return nil, err
	}
	if own.Emulator != "" && os.Getenv("BIGTABLE_EMULATOR_HOST") == "" {
		opts = append(opts, option.WithEndpoint(own.Emulator), option.WithoutAuthentication(), option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	return bigtable.NewInstanceAdminClient(ctx, own.Project, opts...)
}

// IsEmulator reports whether it is an emulator that commands talk to.
func (f *Flags) IsEmulator() bool { return f.Embedded || f.Emulator != "" }

// Resource is the resource name of the instance.
func (f *Flags) Resource() string {
	return "projects/" + f.Project + "/instances/" + f.Instance
}

// String names the instance, for messages.
func (f *Flags) String() string { return fmt.Sprintf("project %s, instance %s", f.Project, f.Instance) }
