package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/store"
)

// AuditCheck checks exported rows of one tenant's audit, wherever they come from: each against its hash, and against the row before
// it. It needs nothing but the rows. The zero AuditCheck is ready.
type AuditCheck struct {
	// Tenant is whose rows they must be; empty: whose the first one is.
	Tenant string
	// Segment accepts rows that begin anywhere. Else the first must be number 1.
	Segment bool
	// Heads were kept elsewhere; Finish holds the rows against them.
	Heads []AuditHead

	chain *store.Chain
	lines int
}

// AuditFault is one place where rows are not what was written.
type AuditFault struct {
	Seq    uint64 `json:"seq,omitempty"`
	Detail string `json:"detail"`
}

func (f AuditFault) String() string { return f.Detail }

// Row checks the next row: one line of an export. Faults are told once each, and checking goes on after them.
func (c *AuditCheck) Row(line []byte) *AuditFault {
	c.lines++
	e, tenant, err := parseAuditLine(line)
	if err != nil {
		return &AuditFault{Detail: fmt.Sprintf("line %d is not a row of an export: %v", c.lines, err)}
	}
	if c.Tenant == "" {
		c.Tenant = tenant
	}
	if tenant != c.Tenant {
		return &AuditFault{Seq: e.Seq, Detail: fmt.Sprintf("row %d belongs to tenant %q, the others to %q", e.Seq, tenant, c.Tenant)}
	}
	return asFault(c.follow().Next(e))
}

// Stored checks the next row as it lies in the store that it was read from: its hash is held against the stored bytes, not against
// what they are shown as, and what is shown must be all that they say.
func (c *AuditCheck) Stored(row AuditRow) *AuditFault {
	c.lines++
	if c.Tenant == "" {
		c.Tenant = row.Tenant
	}
	e := row.stored
	if err := c.follow().Next(e); err != nil {
		return asFault(err)
	}
	act, err := decodeAct(e.Data)
	if err != nil {
		return &AuditFault{Seq: row.Seq, Detail: fmt.Sprintf("row %d cannot be read", row.Seq)}
	}
	if e.Hash.IsZero() {
		return nil
	}
	shown, err := marshal(act)
	if err == nil {
		shown, err = ijson.Parse(shown)
	}
	if err != nil || !bytes.Equal(shown, e.Data) {
		return &AuditFault{Seq: row.Seq, Detail: fmt.Sprintf("row %d says other things in the database than it shows: a newer pawl wrote it, or somebody else did", row.Seq)}
	}
	return nil
}

func (c *AuditCheck) follow() *store.Chain {
	if c.chain == nil {
		c.chain = &store.Chain{Log: auditChain(c.Tenant), Segment: c.Segment}
		for _, h := range c.Heads {
			c.chain.Kept = append(c.chain.Kept, h.Seq)
		}
	}
	return c.chain
}

func asFault(err *store.ChainError) *AuditFault {
	if err == nil {
		return nil
	}
	return &AuditFault{Seq: err.Seq, Detail: err.Error()}
}

// End holds the rows against what the log says of its own end, read after them: none may lie behind it.
func (c *AuditCheck) End(head AuditHead) *AuditFault {
	if last := c.follow().Last(); last > head.Seq {
		return &AuditFault{Seq: head.Seq + 1, Detail: fmt.Sprintf("the log says that it ends at row %d, but its rows go on to row %d: its end was set back, or rows were put in behind it", head.Seq, last)}
	}
	return nil
}

// Finish holds the rows against the heads that were kept.
func (c *AuditCheck) Finish() (faults []AuditFault) {
	chain := c.follow()
	for _, h := range c.Heads {
		if h.Seq == 0 {
			continue // kept when there was no row
		}
		var hash store.Hash
		if h.Hash != "" {
			var err error
			if hash, err = store.ParseHash(h.Hash); err != nil {
				faults = append(faults, AuditFault{Seq: h.Seq, Detail: err.Error()})
				continue
			}
		}
		if f := asFault(chain.At(h.Seq, hash)); f != nil {
			faults = append(faults, *f)
		}
	}
	return faults
}

// AuditExtent says which rows were checked. Begun is the first of them that is chained: those before it were written by a release
// that did not chain, and nothing vouches for them.
type AuditExtent struct {
	Tenant string `json:"tenant"`
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Begun  uint64 `json:"begun"`
	Head   string `json:"head"` // SEQ:HASH
}

// Extent tells which rows were checked.
func (c *AuditCheck) Extent() AuditExtent {
	chain := c.follow()
	x := AuditExtent{Tenant: c.Tenant, First: chain.First(), Last: chain.Last(), Begun: chain.Begun()}
	if h := chain.Hash(); !h.IsZero() {
		x.Head = fmt.Sprintf("%d:%s", x.Last, h)
	}
	return x
}

// parseAuditLine reads an exported row back into the entry that it came from: its own four members, and of the rest the canonical
// form, which is what was hashed. It keeps members that this release does not know.
func parseAuditLine(line []byte) (e store.Entry, tenant string, err error) {
	raw, err := ijson.Parse(line)
	if err != nil {
		return e, "", err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return e, "", fmt.Errorf("not an object")
	}
	var own struct {
		Tenant   string `json:"tenant"`
		Seq      uint64 `json:"seq"`
		PrevHash string `json:"prev_hash"`
		Hash     string `json:"hash"`
	}
	if err := json.Unmarshal(raw, &own); err != nil || own.Seq == 0 || own.Tenant == "" {
		return e, "", fmt.Errorf("it needs tenant, seq, and if it is chained hash and prev_hash")
	}
	e.Seq = own.Seq
	if own.Hash != "" || own.PrevHash != "" {
		var herr, perr error
		e.Hash, herr = store.ParseHash(own.Hash)
		e.Prev, perr = store.ParseHash(own.PrevHash)
		if err := errors.Join(herr, perr); err != nil {
			return e, "", err
		}
	}
	for _, name := range []string{"tenant", "seq", "prev_hash", "hash"} {
		delete(members, name)
	}
	rest, err := marshal(members)
	if err != nil {
		return e, "", err
	}
	e.Data, err = ijson.Parse(rest)
	return e, own.Tenant, err
}
