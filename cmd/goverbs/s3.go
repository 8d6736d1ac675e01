// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/gateway"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/s3rdma"
)

// s3Command serves S3 over RDMA in front of an S3 server.
type s3Command struct {
	Backend   string `required:"" placeholder:"URL" help:"S3 server, such as http://127.0.0.1:9000."`
	BackendCA string `name:"backend-ca" placeholder:"FILE" type:"path" help:"Trust these certificates of the S3 server."`
	Listen    string `default:"127.0.0.1:9480" help:"Listen address, HOST:PORT; :9480 listens on all interfaces."`
	TLSCert   string `name:"tls-cert" placeholder:"FILE" type:"path" help:"Certificate; serve HTTPS."`
	TLSKey    string `name:"tls-key" placeholder:"FILE" type:"path" help:"Private key of the certificate."`
	Metrics   string `placeholder:"HOST:PORT" help:"Serve metrics for Prometheus at this address."`
	Device    string `short:"d" predictor:"device" name:"ib-dev" help:"Device; default: GOVERBS_DEVICE or the first device."`

	Direct  bool `help:"Also accept hipObject's first protocol, a single request."`
	Dynamic bool `help:"Also accept cuObject's tokens, of dynamic connections (mlx5 and software devices)."`

	MaxObject       int           `default:"1073741824" help:"Largest transfer, in bytes; larger ones use HTTP."`
	MaxStaged       int64         `default:"4294967296" help:"Memory of all transfers, in bytes."`
	Idle            int64         `default:"67108864" help:"Idle memory to keep for later transfers, in bytes."`
	Sessions        int           `default:"64" help:"Maximum number of concurrent transfers."`
	SessionsPerKey  int           `default:"0" help:"Maximum number of concurrent transfers per access key; 0: no separate limit."`
	SessionLifetime time.Duration `default:"10s" help:"Time for a client to start a prepared transfer."`
	TransferTimeout time.Duration `default:"30s" help:"Transfer timeout."`
	Grace           time.Duration `default:"30s" help:"Time for transfers and requests to finish after an interrupt."`
	Verbose         bool          `short:"v" help:"Log every transfer."`
}

func (c s3Command) Run(o output) (err error) {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usageError{errors.New("TLS needs a certificate and its key; give both --tls-cert and --tls-key")}
	}
	if err := cmp.Or(
		within("--max-object", c.MaxObject, 1, unlimited),
		within("--max-staged", c.MaxStaged, 1, unlimited),
		within("--idle", c.Idle, 0, unlimited),
		within("--sessions", c.Sessions, 1, unlimited),
		within("--sessions-per-key", c.SessionsPerKey, 0, unlimited),
		within("--session-lifetime", c.SessionLifetime, time.Millisecond, unlimited),
		within("--transfer-timeout", c.TransferTimeout, time.Millisecond, unlimited),
		within("--grace", c.Grace, 0, unlimited),
	); err != nil {
		return err
	}
	o.warnAlone(c.Device)
	device, err := rdma.Open(c.Device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	level := slog.LevelInfo
	if c.Verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(o.problems, &slog.HandlerOptions{Level: level}))
	g, err := gateway.Listen(gateway.Options{Backend: c.Backend, BackendCA: c.BackendCA, Listen: c.Listen,
		Metrics: c.Metrics, Certificate: c.TLSCert, Key: c.TLSKey, Grace: c.Grace,
		Handler: s3rdma.HandlerOptions{Device: device, Direct: c.Direct, Dynamic: c.Dynamic, MaxObject: c.MaxObject,
			MaxStaged: c.MaxStaged, MaxSessions: c.Sessions, MaxSessionsPerClient: c.SessionsPerKey, Idle: max(c.Idle, 1),
			SessionLifetime: c.SessionLifetime, TransferTimeout: c.TransferTimeout, Log: log}})
	if err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	at := s3Addresses{}
	at.Address, at.Metrics = g.Address()
	if o.json {
		if err := o.print(at); err != nil {
			stop()
			return errors.Join(err, g.Run(ctx))
		}
	} else {
		page.Log(o.problems, "serving %s on %s, by RDMA on %s", c.Backend, at.Address, device.Name())
		if at.Metrics != "" {
			page.Log(o.problems, "serving metrics on %s", at.Metrics)
		}
	}
	if err = g.Run(ctx); err != nil {
		log.Error("ended", "error", err)
	}
	return err
}

// s3Addresses is the JSON output of the gateway.
type s3Addresses struct {
	Address string `json:"address"`
	Metrics string `json:"metrics,omitempty"`
}

func (a s3Addresses) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, a.Address, a.Metrics)
	return err
}
