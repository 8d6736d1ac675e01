// SPDX-License-Identifier: BSD-2-Clause

// Package gateway puts S3 over RDMA in front of an S3 server that does not support it: it is a reverse proxy behind
// [s3rdma.Handler].
package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporter"
	"github.com/goverbs/goverbs/s3rdma"
)

// Options configure a [Gateway].
type Options struct {
	Backend          string // URL of the S3 server
	BackendCA        string // file with certificates to trust instead of the system's; may be empty
	Listen           string // HOST:PORT
	Metrics          string // HOST:PORT; empty: none
	Certificate, Key string // files; empty: no TLS
	Grace            time.Duration

	Handler s3rdma.HandlerOptions // Log is required
}

// Limits of connections.
const (
	headerTime  = 10 * time.Second // to read the header of a request
	idleTime    = 2 * time.Minute
	connectTime = 10 * time.Second // to the backend
	maxIdle     = 256              // connections to the backend
)

// Gateway is a server that listens.
type Gateway struct {
	options  Options
	handler  *s3rdma.Handler
	backend  *http.Transport
	requests requests
	server   *http.Server
	listener net.Listener
	metrics  net.Listener // nil: none
}

// Listen opens the addresses. Run serves them and closes everything.
func Listen(o Options) (g *Gateway, err error) {
	to, err := url.Parse(o.Backend)
	if err != nil || to.Scheme != "http" && to.Scheme != "https" || to.Host == "" || to.User != nil ||
		to.Path != "" && to.Path != "/" || to.RawQuery != "" {
		return nil, fmt.Errorf("backend: %q: not an endpoint; give --backend http://HOST:PORT", o.Backend)
	}
	g = &Gateway{options: o, backend: &http.Transport{DialContext: (&net.Dialer{Timeout: connectTime}).DialContext,
		MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleTime, ExpectContinueTimeout: time.Second,
		DisableCompression: true}} // compression would add a header that the client has not signed
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
			if g.metrics != nil {
				_ = g.metrics.Close()
			}
		}
	}()
	if o.BackendCA != "" {
		text, err := os.ReadFile(o.BackendCA)
		if err != nil {
			return g, fmt.Errorf("backend: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return g, fmt.Errorf("backend: %s: no certificate in PEM format", o.BackendCA)
		}
		g.backend.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	if g.handler, err = s3rdma.NewHandler(g.proxy(to), o.Handler); err != nil {
		return g, err
	}
	g.server = &http.Server{Handler: g.handler, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(o.Handler.Log.Handler(), slog.LevelInfo)}
	if o.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(o.Certificate, o.Key)
		if err != nil {
			return g, fmt.Errorf("certificate: %w", err)
		}
		g.server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	if g.listener, err = net.Listen("tcp", o.Listen); err != nil {
		return g, fmt.Errorf("%w; give an address with --listen HOST:PORT", err)
	}
	if o.Metrics != "" {
		if g.metrics, err = net.Listen("tcp", o.Metrics); err != nil {
			return g, fmt.Errorf("%w; give an address with --metrics HOST:PORT", err)
		}
	}
	return g, nil
}

// proxy returns the handler that sends requests to the backend. It leaves everything that a client signs unchanged: the
// host, the path and the query with their escapes, and the headers.
func (g *Gateway) proxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.RawQuery = to.Scheme, to.Host, r.In.URL.RawQuery
			r.SetXForwarded()
		},
		Transport: g.backend,
		ModifyResponse: func(r *http.Response) error {
			g.requests.count(r.StatusCode)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				g.requests.count(http.StatusBadGateway)
				g.options.Handler.Log.Error("backend failed", "method", r.Method, "path", r.URL.Path, "error", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(g.options.Handler.Log.Handler(), slog.LevelInfo),
	}
}

// Address returns the URL of the gateway, and that of the metrics if they are served.
func (g *Gateway) Address() (address, metrics string) {
	address = "http://" + g.listener.Addr().String()
	if g.server.TLSConfig != nil {
		address = "https://" + g.listener.Addr().String()
	}
	if g.metrics != nil {
		metrics = fmt.Sprintf("http://%v/metrics", g.metrics.Addr())
	}
	return address, metrics
}

// Run serves until the context ends. It then rejects new transfers, waits up to Options.Grace for transfers and
// requests in progress, and closes everything.
func (g *Gateway) Run(ctx context.Context) error {
	done := make(chan error, 2)
	serving := 1
	go func() {
		if g.server.TLSConfig != nil {
			done <- g.server.ServeTLS(g.listener, "", "")
		} else {
			done <- g.server.Serve(g.listener)
		}
	}()
	watched, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	defer unwatch()
	if g.metrics != nil {
		serving++
		go func() { done <- exporter.ServeOn(watched, g.metrics, g) }()
	}
	var errs []error
	select {
	case err := <-done:
		serving--
		errs = append(errs, err)
	case <-ctx.Done():
		g.options.Handler.Log.Info("closing", "sessions", g.handler.Sessions())
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.options.Grace)
		defer cancel()
		errs = append(errs, g.handler.Shutdown(soon))
		if err := g.server.Shutdown(soon); err != nil {
			g.options.Handler.Log.Error("requests are cut off", "error", err)
		}
	}
	unwatch()
	errs = append(errs, g.close())
	for range serving {
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close closes everything but the listener for metrics.
func (g *Gateway) close() error {
	var errs []error
	if g.server != nil {
		errs = append(errs, g.server.Close())
	}
	if g.listener != nil {
		_ = g.listener.Close() // the server may have closed it
	}
	if g.handler != nil {
		errs = append(errs, g.handler.Close())
	}
	g.backend.CloseIdleConnections()
	return errors.Join(errs...)
}
