// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// logged returns the JSON that log/slog prints for an object.
func logged(t *testing.T, o any) string {
	t.Helper()
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("", "o", o)
	_, text, _ := bytes.Cut(out.Bytes(), []byte(`"o":`))
	assert.Equal(t, fmt.Sprintf("%q}\n", fmt.Sprint(o)), string(text))
	return fmt.Sprint(o)
}

// TestPrint: connections and listeners print their addresses, also before they are created and after they are closed.
func TestPrint(t *testing.T) {
	f := newFabric(t, soft.Options{})
	config := Config{Backend: f}
	l, err := listening(config).Listen(soon(t), "127.0.0.1:7002")
	require.NoError(t, err)
	assert.Equal(t, "listener 127.0.0.1:7002 on soft0", logged(t, l))
	a, b := dialOne(t, config, l)
	assert.Equal(t, fmt.Sprintf("connection %v to 127.0.0.1:7002 on soft0", a.LocalAddr()), logged(t, a))
	assert.Equal(t, fmt.Sprintf("connection 127.0.0.1:7002 to %v on soft0", a.LocalAddr()), logged(t, b))
	for _, o := range []interface {
		fmt.Stringer
		io.Closer
	}{l, a, b} {
		open := o.String()
		require.NoError(t, o.Close())
		assert.Equal(t, open+", closed", logged(t, o))
	}

	assert.Equal(t, "connection that was never created", logged(t, new(Conn)))
	assert.Equal(t, "listener that was never created", logged(t, new(Listener)))
}

func dialOne(t *testing.T, config Config, l *Listener) (a, b *Conn) {
	t.Helper()
	var dialing sync.WaitGroup
	var err error
	dialing.Go(func() { a, err = dialer(config).Dial(soon(t), l.Addr().String()) })
	b, acceptErr := l.AcceptRDMA(soon(t))
	dialing.Wait()
	require.NoError(t, err)
	require.NoError(t, acceptErr)
	return a, b
}
