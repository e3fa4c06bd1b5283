package api_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"testing"
	"time"
)

// rawWS is a WebSocket client (RFC 6455) that shares no code with the server's, so that both cannot be wrong in the same way,
// and that can send what a library would not.
type rawWS struct {
	t      testing.TB
	r      *rig
	conn   *net.TCPConn
	br     *bufio.Reader
	status int
	header http.Header
	body   []byte
	part   []byte
}

// handshake opens a connection and sends an upgrade; headers are name, value pairs ("" removes a default).
func (r *rig) handshake(who string, headers ...string) *rawWS {
	r.t.Helper()
	addr := r.web.Listener.Addr().String()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	var nonce [16]byte
	rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	h := map[string]string{
		"Host": addr, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": "pawl.v1",
	}
	if k, ok := r.keys[who]; ok {
		h["Authorization"] = "Bearer " + k
	} else if who != "" {
		h["Authorization"] = "Bearer " + who
	}
	for i := 0; i < len(headers); i += 2 {
		h[headers[i]] = headers[i+1]
	}
	req := "GET /v1/ws HTTP/1.1\r\n"
	for k, v := range h {
		if v != "" {
			req += k + ": " + v + "\r\n"
		}
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		r.t.Fatal(err)
	}
	w := &rawWS{t: r.t, r: r, conn: c.(*net.TCPConn), br: bufio.NewReader(c)}
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(w.br, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	w.status, w.header = resp.StatusCode, resp.Header
	if w.status != 101 {
		w.body, _ = io.ReadAll(resp.Body)
		resp.Body.Close()
		return w
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if got := w.header.Get("Sec-Websocket-Accept"); got != base64.StdEncoding.EncodeToString(sum[:]) {
		r.t.Errorf("Sec-WebSocket-Accept %q", got)
	}
	if e := w.header[textproto.CanonicalMIMEHeaderKey("Sec-WebSocket-Extensions")]; e != nil {
		r.t.Errorf("extensions %v were negotiated", e)
	}
	return w
}

// ws is handshake for one that must succeed and be welcomed.
func (r *rig) ws(who string, headers ...string) *rawWS {
	r.t.Helper()
	w := r.handshake(who, headers...)
	if w.status != 101 {
		r.t.Fatalf("upgrade: %d %s", w.status, w.body)
	}
	w.want("welcome")
	return w
}

// frame sends one frame, masked.
func (w *rawWS) frame(fin bool, op byte, payload []byte) {
	w.t.Helper()
	if err := w.tryFrame(fin, op, payload); err != nil {
		w.t.Fatalf("write: %v", err)
	}
}

func (w *rawWS) tryFrame(fin bool, op byte, payload []byte) error {
	b := []byte{op}
	if fin {
		b[0] |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := []byte{0xa1, 0xb2, 0xc3, 0xd4}
	b = append(b, mask...)
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	_, err := w.conn.Write(b)
	return err
}

// text sends a text message: a string as it is, another value as JSON.
func (w *rawWS) text(v any) {
	w.t.Helper()
	b, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		if err != nil {
			w.t.Fatal(err)
		}
		b = string(raw)
	}
	w.frame(true, 1, []byte(b))
}

type closed struct {
	code int
	text string
}

func (c closed) Error() string { return fmt.Sprintf("closed %d %s", c.code, c.text) }

// read returns the next message, or a closed error with the code.
func (w *rawWS) read() (map[string]any, error) {
	w.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		var head [2]byte
		if _, err := io.ReadFull(w.br, head[:]); err != nil {
			return nil, err
		}
		if head[1]&0x80 != 0 || head[0]&0x70 != 0 {
			return nil, errors.New("a masked frame or a reserved bit")
		}
		n := uint64(head[1] & 0x7f)
		switch n {
		case 126:
			var l [2]byte
			if _, err := io.ReadFull(w.br, l[:]); err != nil {
				return nil, err
			}
			n = uint64(binary.BigEndian.Uint16(l[:]))
		case 127:
			var l [8]byte
			if _, err := io.ReadFull(w.br, l[:]); err != nil {
				return nil, err
			}
			n = binary.BigEndian.Uint64(l[:])
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(w.br, p); err != nil {
			return nil, err
		}
		switch head[0] & 0x0f {
		case 0, 1:
			w.part = append(w.part, p...)
			if head[0]&0x80 == 0 {
				continue
			}
			var m map[string]any
			err := json.Unmarshal(w.part, &m)
			w.r.see(w.part)
			w.part = nil
			return m, err
		case 8:
			c := closed{code: 1005}
			if len(p) >= 2 {
				c = closed{int(binary.BigEndian.Uint16(p)), string(p[2:])}
			}
			return nil, c
		case 9:
			if err := w.tryFrame(true, 10, p); err != nil {
				return nil, err
			}
		}
	}
}

// want reads messages until one of the type.
func (w *rawWS) want(typ string) map[string]any {
	w.t.Helper()
	for {
		m, err := w.read()
		if err != nil {
			w.t.Fatalf("waiting for %s: %v", typ, err)
		}
		if m["type"] == typ {
			return m
		}
		if m["type"] == "error" {
			w.t.Fatalf("waiting for %s: %v", typ, m)
		}
	}
}

// problem reads the next message, which must be an error frame with this status and id.
func (w *rawWS) problem(status int, id any) map[string]any {
	w.t.Helper()
	m, err := w.read()
	if err != nil {
		w.t.Fatalf("waiting for an error %d: %v", status, err)
	}
	p, _ := m["problem"].(map[string]any)
	if m["type"] != "error" || p["status"] != float64(status) || m["id"] != id {
		w.t.Errorf("%v, want an error %d with id %v", m, status, id)
	}
	return p
}

// closes reads until the close frame, which must have this code, and sees the connection end.
func (w *rawWS) closes(code int) {
	w.t.Helper()
	for {
		_, err := w.read()
		if err == nil {
			continue
		}
		c, ok := errors.AsType[closed](err)
		if !ok || c.code != code {
			w.t.Errorf("the socket ended with %v, want close code %d", err, code)
			return
		}
		_ = w.tryFrame(true, 8, binary.BigEndian.AppendUint16(nil, uint16(code)))
		if _, err := w.br.ReadByte(); err == nil {
			w.t.Error("something came after the close frame")
		}
		return
	}
}

// events reads the events of a subscription until one of the type, and returns their sequence numbers and types.
func (w *rawWS) events(id, until string) (seqs []int, types []string) {
	w.t.Helper()
	for {
		m := w.want("event")
		if m["id"] != id {
			continue
		}
		e := m["event"].(map[string]any)
		if n, ok := m["seq"].(float64); ok {
			seqs = append(seqs, int(n))
		}
		types = append(types, e["type"].(string))
		if e["type"] == until {
			return seqs, types
		}
	}
}

func consecutive(from int, seqs []int) bool {
	want := make([]int, len(seqs))
	for i := range want {
		want[i] = from + i
	}
	return slices.Equal(seqs, want)
}
