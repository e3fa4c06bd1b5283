package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/sdk/client"
	"github.com/pawlhost/pawl/store"
)

// auditSource is where rows come from: a host, the folder of a stopped one, or a file.
type auditSource struct {
	tenant string // "" when the first row tells
	head   func() (host.AuditHead, error)
	rows   func(client.AuditFilter) func(yield func(auditLine, error) bool)
	close  func() error
}

// auditLine is a row as it is exported. One that comes from a folder has itself beside it, as it is stored there.
type auditLine struct {
	text   json.RawMessage
	stored *host.AuditRow
}

func (l auditLine) check(c *host.AuditCheck) *host.AuditFault {
	if l.stored != nil {
		return c.Stored(*l.stored)
	}
	return c.Row(l.text)
}

// auditAt opens the source that the flags name. With --data nothing but the database is opened, and nothing is written into it.
func (a *app) auditAt(c *cobra.Command, tenant string) (*auditSource, error) {
	ctx := c.Context()
	if a.data == "" {
		if c.Flags().Changed("tenant") {
			return nil, usagef("--tenant goes with --data: over the wire your own key says which tenant")
		}
		r, err := a.remote()
		if err != nil {
			return nil, err
		}
		return &auditSource{
			head: func() (h host.AuditHead, err error) {
				err = r.call(ctx, http.MethodGet, "/v1/audit/head", nil, &h)
				return h, err
			},
			rows: func(f client.AuditFilter) func(func(auditLine, error) bool) {
				return func(yield func(auditLine, error) bool) {
					for line, err := range r.AuditExport(ctx, f) {
						if !yield(auditLine{text: line}, r.explain(ctx, err)) {
							return
						}
					}
				}
			},
			close: func() error { return nil },
		}, nil
	}
	if _, err := os.Stat(a.dbFolder()); err != nil {
		return nil, &exitError{exitNotFound, fmt.Errorf("%s has no database", visible(a.data))}
	}
	log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := openStore(a.data, uint64(a.reserveLow), log)
	if err != nil {
		return nil, err
	}
	return &auditSource{
		tenant: tenant,
		head:   func() (host.AuditHead, error) { return host.ReadAuditHead(ctx, s, tenant) },
		rows: func(f client.AuditFilter) func(func(auditLine, error) bool) {
			return func(yield func(auditLine, error) bool) { storedRows(ctx, s, tenant, f, yield) }
		},
		close: s.Close,
	}, nil
}

// storedRows reads an export from a store.
func storedRows(ctx context.Context, s store.Store, tenant string, f client.AuditFilter, yield func(auditLine, error) bool) {
	e, err := host.ReadAudit(ctx, s, tenant, host.AuditFilter{After: f.After, From: host.Time(f.From), To: host.Time(f.To)})
	for err == nil {
		var rows []host.AuditRow
		if rows, err = e.Next(ctx); err != nil {
			break
		}
		for _, row := range rows {
			line, merr := marshal(row)
			if !yield(auditLine{line, &row}, merr) || merr != nil {
				return
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		yield(auditLine{}, err)
	}
}

// dataFlags are those of the commands that read a host, or the folder of a stopped one.
func (a *app) dataFlags(c *cobra.Command, tenant *string) {
	a.clientFlags(c.Flags())
	c.Flags().StringVar(&a.data, "data", "", "read this data `FOLDER` of a stopped host instead of over the wire")
	c.Flags().StringVar(tenant, "tenant", "default", "the `TENANT`, with --data")
}

func (a *app) auditHeadCommand() *cobra.Command {
	var tenant string
	c := &cobra.Command{
		Use:   "head",
		Short: "Print how far the log is, as SEQ:HASH",
		Long: `Prints the number and the hash of the last row. The hash vouches for all rows before it. Keep it where whoever could change the log
cannot: only then does a check find an end that was cut off, or a log that was written anew as a whole.`,
		Example: `  pawl audit head >> kept-elsewhere
  pawl audit verify --head "$(tail -n 1 kept-elsewhere)"`,
		RunE: func(c *cobra.Command, _ []string) error {
			src, err := a.auditAt(c, tenant)
			if err != nil {
				return err
			}
			h, err := src.head()
			if err = errors.Join(err, src.close()); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(h)
			}
			_, err = fmt.Fprintf(a.stdout, "%d:%s\n", h.Seq, visible(h.Hash))
			return err
		},
	}
	a.dataFlags(c, &tenant)
	return c
}

func (a *app) auditExportCommand() *cobra.Command {
	var tenant, from, to, after string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write the audit log as JSON lines",
		Long: `Writes rows as JSON, one a line, oldest first: all there are, or the stretch from the first that is not before --from up to the last that
is before --to. A stretch has no hole, so that it can be checked by itself ("pawl audit verify --file"). To go on later, give --after the
number of the last row that you have.`,
		Example: `  pawl audit export > audit.jsonl
  pawl audit export --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z > november.jsonl
  pawl audit export --after 812 >> audit.jsonl`,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			f := client.AuditFilter{After: after}
			for _, m := range []struct {
				name, text string
				t          *time.Time
			}{{"from", from, &f.From}, {"to", to, &f.To}} {
				if m.text == "" {
					continue
				}
				if *m.t, err = time.Parse(time.RFC3339, m.text); err != nil {
					return usagef("--%s %q: write a time like 2026-11-01T00:00:00Z", m.name, m.text)
				}
			}
			if _, err := strconv.ParseUint(after, 10, 64); after != "" && err != nil {
				return usagef("--after %q: write the number of a row", after)
			}
			src, err := a.auditAt(c, tenant)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, src.close()) }()
			out := bufio.NewWriter(a.stdout)
			for line, err := range src.rows(f) {
				if err == nil {
					_, err = out.WriteString(visibleJSON(string(line.text)) + "\n")
				}
				if err != nil {
					_ = out.Flush() // what came is good; --after goes on behind it
					return err
				}
			}
			return out.Flush()
		},
	}
	a.dataFlags(c, &tenant)
	c.Flags().StringVar(&from, "from", "", "from this `TIME` (RFC 3339)")
	c.Flags().StringVar(&to, "to", "", "up to this `TIME`")
	c.Flags().StringVar(&after, "after", "", "only rows after the one with this `SEQ`")
	return c
}

// verdict is what a check found.
type verdict struct {
	// OK says that nothing is amiss, and that there are hashes that vouch for it, unless the caller does without.
	OK     bool              `json:"ok"`
	Rows   uint64            `json:"rows"`
	Faults []host.AuditFault `json:"faults"`
	// More counts the faults beyond those.
	More int `json:"more,omitempty"`
	host.AuditExtent
}

// maxFaults is how many faults are told in words.
const maxFaults = 20

func (v *verdict) add(faults ...host.AuditFault) {
	for _, f := range faults {
		if len(v.Faults) < maxFaults {
			v.Faults = append(v.Faults, f)
		} else {
			v.More++
		}
	}
}

func (a *app) auditVerifyCommand() *cobra.Command {
	var tenant, file string
	var kept []string
	var unchained bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no row was changed, removed, moved or put in",
		Long: `Checks every row against its hash and against the row before it: of a host over the wire, of the data folder of a stopped host (the database
alone, no key is needed), or of a file that "pawl audit export" wrote. With --head it also tells whether the end was cut off, or the log written
anew, since that head was kept. Ends with code 8 when something is not as it was written, or when no row has a hash, so that nothing can tell.`,
		Example: `  pawl audit verify --head "$(tail -n 1 kept-elsewhere)"
  pawl audit verify --data /var/lib/pawl --tenant acme
  pawl audit verify --file november.jsonl`,
		RunE: func(c *cobra.Command, _ []string) error {
			check := host.AuditCheck{Segment: file != ""}
			for _, text := range kept {
				h, err := parseHead(text)
				if err != nil {
					return err
				}
				check.Heads = append(check.Heads, h)
			}
			if file != "" && (a.data != "" || c.Flags().Changed("tenant")) {
				return usagef("--file is a file by itself: leave --data and --tenant out")
			}
			v, err := a.verify(c, &check, tenant, file)
			if err != nil {
				return err
			}
			if v.Begun == 0 && v.Rows > 0 && !unchained {
				v.OK = false
			}
			return a.tellVerdict(v, len(kept))
		},
	}
	a.dataFlags(c, &tenant)
	c.Flags().StringVar(&file, "file", "", "check this `FILE` of JSON lines; - is standard input")
	c.Flags().StringArrayVar(&kept, "head", nil, "a head that was kept elsewhere, `SEQ:HASH` (repeatable)")
	c.Flags().BoolVar(&unchained, "allow-unchained", false, "accept rows without a single hash: a release that did not chain wrote them all")
	return c
}

func parseHead(text string) (host.AuditHead, error) {
	seq, hash, ok := strings.Cut(strings.TrimSpace(text), ":")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err == nil && hash != "" {
		_, err = store.ParseHash(hash)
	}
	if err != nil || !ok {
		return host.AuditHead{}, usagef("--head %q: write what \"pawl audit head\" printed, like 812:sha256:…", text)
	}
	return host.AuditHead{Seq: n, Hash: hash}, nil
}

func (a *app) verify(c *cobra.Command, check *host.AuditCheck, tenant, file string) (v verdict, err error) {
	v.Faults = []host.AuditFault{}
	var rows func(func(auditLine, error) bool)
	var head func() (host.AuditHead, error)
	if file != "" {
		in := a.stdin
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return v, usagef("--file: %w", err)
			}
			defer f.Close()
			in = f
		}
		rows = fileRows(in)
	} else {
		src, err := a.auditAt(c, tenant)
		if err != nil {
			return v, err
		}
		defer func() { err = errors.Join(err, src.close()) }()
		check.Tenant = src.tenant
		// What the log says of its own end comes first: rows may follow while it is read.
		head = src.head
		h, err := head()
		if err != nil {
			return v, err
		}
		check.Heads = append(check.Heads, h)
		rows = src.rows(client.AuditFilter{})
	}
	for line, err := range rows {
		if err != nil {
			return v, err
		}
		v.Rows++
		if f := line.check(check); f != nil {
			v.add(*f)
		}
	}
	if head != nil {
		end, err := head() // again: it has grown with the rows
		if err != nil {
			return v, err
		}
		if f := check.End(end); f != nil {
			v.add(*f)
		}
	}
	v.add(check.Finish()...)
	v.AuditExtent = check.Extent()
	v.OK = len(v.Faults) == 0
	return v, nil
}

// fileRows yields the lines of a file. The last may be without its line break.
func fileRows(r io.Reader) func(func(auditLine, error) bool) {
	return func(yield func(auditLine, error) bool) {
		in := bufio.NewReaderSize(r, 64<<10)
		for {
			line, err := in.ReadBytes('\n')
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(auditLine{text: line}, nil) {
				return
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(auditLine{}, err)
				}
				return
			}
		}
	}
}

// tellVerdict prints what a check found, and gives it its exit code.
func (a *app) tellVerdict(v verdict, kept int) error {
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
	}
	if !v.OK && len(v.Faults) == 0 {
		return &exitError{exitTampered, fmt.Errorf("nothing vouches for rows %d to %d of tenant %s: not one has a hash. If they are from before the log was chained, say --allow-unchained; else the hashes were taken out",
			v.First, v.Last, visible(v.Tenant))}
	}
	if !v.OK {
		if !a.json {
			for _, f := range v.Faults {
				fmt.Fprintln(a.stderr, visible(f.Detail))
			}
			if v.More > 0 {
				fmt.Fprintf(a.stderr, "and %d more\n", v.More)
			}
		}
		return &exitError{exitTampered, errors.New("the audit log is not what was written: keep it as it is, and compare it with your exports and backups")}
	}
	if v.Rows == 0 { // a misspelt tenant must not look like a log that is well
		return &exitError{exitNotFound, errors.New("there is no row to check: is it the right tenant, folder or file?")}
	}
	if a.json {
		return nil
	}
	if v.Begun == 0 {
		fmt.Fprintf(a.stdout, "rows %d to %d of tenant %s are without a hole, and nothing vouches for what they say: none has a hash\n", v.First, v.Last, visible(v.Tenant))
	} else {
		fmt.Fprintf(a.stdout, "rows %d to %d of tenant %s are as they were written\n", v.First, v.Last, visible(v.Tenant))
	}
	if v.Begun > v.First {
		fmt.Fprintf(a.stdout, "the chain begins at row %d: nothing vouches for those before it\n", v.Begun)
	}
	if kept == 0 {
		fmt.Fprintln(a.stdout, "a cut end shows only against a head that was kept elsewhere: --head")
	}
	return nil
}
