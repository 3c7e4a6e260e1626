// The peer that is grpc-go, with messages as bytes. ../../protocol.ts says what it is told.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	service = "openshell.test.v1.Echo"
	maxText = 2048
)

var methods = map[string]string{"unary": "Unary", "server": "ServerStream", "client": "ClientStream", "bidi": "Bidi"}

// A message is its payload: this codec is all that knows of protobuf.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(value any) ([]byte, error) {
	payload := *value.(*[]byte)
	if len(payload) == 0 {
		return nil, nil
	}
	head := []byte{0x0a}
	length := len(payload)
	for ; length > 127; length >>= 7 {
		head = append(head, byte(length)|128)
	}
	return append(append(head, byte(length)), payload...), nil
}

func (codec) Unmarshal(data []byte, value any) error {
	target := value.(*[]byte)
	if len(data) == 0 {
		*target = nil
		return nil
	}
	at := 1
	for data[at]&128 != 0 {
		at++
	}
	*target = append([]byte(nil), data[at+1:]...)
	return nil
}

func patterned(size, seed int) []byte {
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte(seed*31 + (i%256)*7)
	}
	return bytes
}

var out sync.Mutex

func emit(event any) {
	text, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

type pair [2]string

func toMetadata(list []pair) metadata.MD {
	md := metadata.MD{}
	for _, entry := range list {
		value := entry[1]
		if strings.HasSuffix(entry[0], "-bin") {
			raw, err := base64.StdEncoding.DecodeString(value)
			if err != nil {
				panic(err)
			}
			value = string(raw)
		}
		md.Append(entry[0], value)
	}
	return md
}

func fromMetadata(md metadata.MD) []pair {
	list := []pair{}
	for key, values := range md {
		for _, value := range values {
			if strings.HasSuffix(key, "-bin") {
				value = base64.StdEncoding.EncodeToString([]byte(value))
			}
			list = append(list, pair{key, value})
		}
	}
	return list
}

type tlsFiles struct{ CA, Cert, Key string }

type config struct {
	Role        string
	Address     string
	TLS         *tlsFiles
	Gzip        bool
	KeepaliveMs int
}

func (c *config) material() (tls.Certificate, *x509.CertPool) {
	pair, err := tls.X509KeyPair([]byte(c.TLS.Cert), []byte(c.TLS.Key))
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(c.TLS.CA))
	return pair, pool
}

type order struct {
	Op         string
	ID         int
	Kind       string
	Metadata   []pair
	DeadlineMs *int
	Gzip       bool
	Reads      *int
	Count      int
	Size       int
	Seed       int
}

func orders() <-chan order {
	channel := make(chan order)
	go func() {
		scanner := bufio.NewScanner(os.Stdin)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			var one order
			if err := json.Unmarshal(scanner.Bytes(), &one); err != nil {
				panic(err)
			}
			channel <- one
		}
		os.Exit(0)
	}()
	return channel
}

// --- client

type call struct {
	start  order
	cancel context.CancelFunc
	ctx    context.Context
	sends  chan order
	reads  chan struct{}
}

func newCall(start order) *call {
	one := &call{start: start, sends: make(chan order, 1024), reads: make(chan struct{}, 1<<16)}
	ctx := metadata.NewOutgoingContext(context.Background(), toMetadata(start.Metadata))
	if start.DeadlineMs != nil {
		one.ctx, one.cancel = context.WithTimeout(ctx, time.Duration(*start.DeadlineMs)*time.Millisecond)
	} else {
		one.ctx, one.cancel = context.WithCancel(ctx)
	}
	if start.Reads != nil {
		for n := 0; n < *start.Reads; n++ {
			one.reads <- struct{}{}
		}
	}
	return one
}

func (c *call) message(payload []byte) {
	event := map[string]any{"id": c.start.ID, "event": "message", "length": len(payload), "crc": crc32.ChecksumIEEE(payload)}
	if len(payload) <= maxText {
		event["text"] = string(payload)
	}
	emit(event)
}

func (c *call) headers(md metadata.MD) {
	if md != nil {
		emit(map[string]any{"id": c.start.ID, "event": "headers", "metadata": fromMetadata(md)})
	}
}

func (c *call) end(err error, trailers metadata.MD) {
	s := status.Convert(err)
	emit(map[string]any{"id": c.start.ID, "event": "end", "code": uint32(s.Code()), "message": s.Message(), "trailers": fromMetadata(trailers)})
}

func (c *call) run(conn *grpc.ClientConn) {
	defer c.cancel()
	kind := c.start.Kind
	path := "/" + service + "/" + methods[kind]
	var header, trailer metadata.MD
	options := []grpc.CallOption{grpc.ForceCodec(codec{})}
	if c.start.Gzip {
		options = append(options, grpc.UseCompressor("gzip"))
	}
	if kind == "unary" {
		op := <-c.sends
		request := patterned(op.Size, op.Seed)
		var reply []byte
		err := conn.Invoke(c.ctx, path, &request, &reply, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
		c.headers(header)
		if err == nil {
			c.message(reply)
		}
		c.end(err, trailer)
		return
	}
	desc := &grpc.StreamDesc{ServerStreams: kind != "client", ClientStreams: kind != "server"}
	stream, err := conn.NewStream(c.ctx, desc, path, options...)
	if err != nil {
		c.end(err, nil)
		return
	}
	go c.send(stream)
	if md, err := stream.Header(); err == nil {
		c.headers(md)
	}
	for {
		if c.start.Reads != nil {
			select {
			case <-c.reads:
			case <-c.ctx.Done():
			}
		}
		var reply []byte
		if err = stream.RecvMsg(&reply); err != nil {
			break
		}
		c.message(reply)
		if kind == "client" {
			break
		}
	}
	if err == io.EOF {
		err = nil
	}
	c.end(err, stream.Trailer())
}

func (c *call) send(stream grpc.ClientStream) {
	total := 0
	for {
		select {
		case op := <-c.sends:
			if op.Op == "close" {
				stream.CloseSend()
				return
			}
			for n := 0; n < op.Count; n++ {
				message := patterned(op.Size, op.Seed+n)
				if stream.SendMsg(&message) != nil {
					return
				}
				total++
				emit(map[string]any{"id": c.start.ID, "event": "sent", "total": total})
			}
			if c.start.Kind == "server" {
				stream.CloseSend()
				return
			}
		case <-stream.Context().Done():
			return
		}
	}
}

func client(conf *config) {
	transport := insecure.NewCredentials()
	if conf.TLS != nil {
		pair, pool := conf.material()
		transport = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool})
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if conf.KeepaliveMs > 0 {
		every := time.Duration(conf.KeepaliveMs) * time.Millisecond
		options = append(options, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: every, PermitWithoutStream: true}))
	}
	conn, err := grpc.NewClient(target(conf.Address), options...)
	if err != nil {
		panic(err)
	}
	calls := map[int]*call{}
	for op := range orders() {
		switch op.Op {
		case "start":
			calls[op.ID] = newCall(op)
			go calls[op.ID].run(conn)
		case "send", "close":
			calls[op.ID].sends <- op
		case "cancel":
			calls[op.ID].cancel()
		case "read":
			for n := 0; n < op.Count; n++ {
				calls[op.ID].reads <- struct{}{}
			}
		}
	}
}

func target(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	return "passthrough:///" + address
}

// --- server

type report struct {
	Started    bool     `json:"started"`
	Done       bool     `json:"done"`
	Cancelled  bool     `json:"cancelled"`
	Received   int      `json:"received"`
	Sent       int      `json:"sent"`
	HalfClosed bool     `json:"halfClosed"`
	DeadlineMs *float64 `json:"deadlineMs"`
	PeerName   string   `json:"peerName"`
}

var (
	state   sync.Mutex
	records = map[string]*report{}
	gates   = map[string]chan struct{}{}
)

func gate(name string) chan struct{} {
	state.Lock()
	defer state.Unlock()
	if gates[name] == nil {
		gates[name] = make(chan struct{})
	}
	return gates[name]
}

type handling struct {
	stream   grpc.ServerStream
	md       metadata.MD
	report   *report
	trailers metadata.MD
}

func first(md metadata.MD, key string) (string, bool) {
	if values := md.Get("do-" + key); len(values) > 0 {
		return values[0], true
	}
	return "", false
}

func (h *handling) number(key string) int {
	if text, ok := first(h.md, key); ok {
		value, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return value
	}
	return -1
}

// Everything that changes a record passes here: `report` calls read it.
func (h *handling) note(change func(*report)) {
	state.Lock()
	defer state.Unlock()
	change(h.report)
}

func newHandling(stream grpc.ServerStream, md metadata.MD) *handling {
	h := &handling{stream: stream, md: md, report: &report{Started: true}, trailers: metadata.MD{}}
	ctx := stream.Context()
	if deadline, ok := ctx.Deadline(); ok {
		left := float64(time.Until(deadline)) / 1e6
		h.report.DeadlineMs = &left
	}
	if who, ok := peer.FromContext(ctx); ok {
		if info, ok := who.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			h.report.PeerName = info.State.PeerCertificates[0].Subject.CommonName
		}
	}
	if tag, ok := first(md, "tag"); ok {
		state.Lock()
		records[tag] = h.report
		state.Unlock()
	}
	return h
}

func (h *handling) begin() error {
	if _, ok := first(h.md, "echo-metadata"); ok {
		headers := metadata.MD{}
		for key, values := range h.md {
			if strings.HasPrefix(key, "x-") {
				headers.Append("h-"+key[2:], values...)
				h.trailers.Append("t-"+key[2:], values...)
			}
		}
		if err := h.stream.SendHeader(headers); err != nil {
			return err
		}
	}
	if name, ok := first(h.md, "hold"); ok {
		select {
		case <-gate(name):
		case <-h.stream.Context().Done():
			return status.FromContextError(h.stream.Context().Err()).Err()
		}
	}
	if h.number("fail-after") < 0 {
		return h.failure()
	}
	return nil
}

func (h *handling) failure() error {
	code := h.number("fail")
	if code < 0 || h.report.Sent < h.number("fail-after") {
		return nil
	}
	text, _ := first(h.md, "message-bin")
	details, ok := first(h.md, "details-bin")
	if !ok {
		return status.Error(codes.Code(code), text)
	}
	message := &spb.Status{}
	if err := proto.Unmarshal([]byte(details), message); err != nil {
		panic(err)
	}
	return status.FromProto(message).Err()
}

func (h *handling) send(payload []byte) error {
	h.note(func(r *report) { r.Sent++ })
	return h.stream.SendMsg(&payload)
}

func (h *handling) receive() ([]byte, error) {
	var payload []byte
	if err := h.stream.RecvMsg(&payload); err != nil {
		return nil, err
	}
	h.note(func(r *report) { r.Received++ })
	return payload, nil
}

func (h *handling) unary() error {
	request, err := h.receive()
	if err != nil {
		return err
	}
	if err := h.begin(); err != nil {
		return err
	}
	return h.send(request)
}

func (h *handling) serverStream() error {
	request, err := h.receive()
	if err != nil {
		return err
	}
	if err := h.begin(); err != nil {
		return err
	}
	count := h.number("count")
	if count < 0 {
		count = 1
	}
	for n := 0; n < count; n++ {
		if err := h.failure(); err != nil {
			return err
		}
		payload := request
		if size := h.number("size"); size >= 0 {
			payload = patterned(size, n)
		}
		if err := h.send(payload); err != nil {
			return err
		}
	}
	return h.failure()
}

func (h *handling) clientStream() error {
	if err := h.begin(); err != nil {
		return err
	}
	total := 0
	crc := uint32(0)
	for h.report.Received != h.number("end-after") {
		payload, err := h.receive()
		if err == io.EOF {
			h.note(func(r *report) { r.HalfClosed = true })
			break
		}
		if err != nil {
			return err
		}
		total += len(payload)
		crc = crc32.Update(crc, crc32.IEEETable, payload)
	}
	return h.send([]byte(fmt.Sprintf("%d %d %d", h.report.Received, total, crc)))
}

func (h *handling) bidi() error {
	if err := h.begin(); err != nil {
		return err
	}
	for h.report.Received != h.number("end-after") {
		payload, err := h.receive()
		if err == io.EOF {
			h.note(func(r *report) { r.HalfClosed = true })
			return h.failure()
		}
		if err != nil {
			return err
		}
		if err := h.failure(); err != nil {
			return err
		}
		if err := h.send(payload); err != nil {
			return err
		}
	}
	return nil
}

func handle(kind string, gzip bool) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		if kind == "unary" {
			if tag, ok := first(md, "report"); ok {
				var request []byte
				if err := stream.RecvMsg(&request); err != nil {
					return err
				}
				state.Lock()
				found := records[tag]
				if found == nil {
					found = &report{}
				}
				text, err := json.Marshal(found)
				state.Unlock()
				if err != nil {
					panic(err)
				}
				return stream.SendMsg(&text)
			}
			if name, ok := first(md, "release"); ok {
				close(gate(name))
				nothing := []byte{}
				return stream.SendMsg(&nothing)
			}
		}
		if gzip {
			if err := grpc.SetSendCompressor(stream.Context(), "gzip"); err != nil {
				return err
			}
		}
		h := newHandling(stream, md)
		var err error
		switch kind {
		case "unary":
			err = h.unary()
		case "server":
			err = h.serverStream()
		case "client":
			err = h.clientStream()
		default:
			err = h.bidi()
		}
		stream.SetTrailer(h.trailers)
		h.note(func(r *report) {
			r.Done = true
			r.Cancelled = stream.Context().Err() != nil
		})
		return err
	}
}

func listen(conf *config) *grpc.Server {
	options := []grpc.ServerOption{grpc.ForceServerCodec(codec{})}
	if conf.TLS != nil {
		pair, pool := conf.material()
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		})))
	}
	server := grpc.NewServer(options...)
	desc := &grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	for kind, name := range methods {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: name, Handler: handle(kind, conf.Gzip),
			ServerStreams: kind != "client", ClientStreams: kind != "server",
		})
	}
	server.RegisterService(desc, struct{}{})
	network, address := "tcp", conf.Address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		panic(err)
	}
	shown := conf.Address
	if network == "tcp" {
		shown = listener.Addr().String()
	}
	go server.Serve(listener)
	emit(map[string]string{"listening": shown})
	return server
}

func main() {
	conf := &config{}
	if err := json.Unmarshal([]byte(os.Args[1]), conf); err != nil {
		panic(err)
	}
	if conf.Role == "client" {
		client(conf)
		return
	}
	current := listen(conf)
	for range orders() {
		old := current
		current = listen(conf)
		go old.GracefulStop()
	}
}
