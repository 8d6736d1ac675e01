package cm

import (
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/runtime"
)

// Config is what can be chosen of stream connections. The zero value has the defaults.
type Config struct {
	// Backend is a software backend; nil means the native library.
	Backend runtime.Backend
	// Buffer is how many bytes each side keeps for what the other has sent and nobody has read yet, and half as many for what it sends: memory
	// that is pinned. Large writes are sent in pieces of a quarter. 0 means [DefaultBuffer].
	Buffer int
	// HandshakeTimeout bounds each step of connecting. 0 means [DefaultHandshakeTimeout].
	HandshakeTimeout time.Duration
	// Linger bounds how long Close waits until all that was written has arrived. 0 means [DefaultLinger].
	Linger time.Duration
	// Heartbeat sends something after so long a silence. Without it the death of a peer whose machine has vanished is noticed only by who
	// writes; with it, the connection fails soon. 0 means none.
	Heartbeat time.Duration
	// BusyPoll is how long who waits polls before it sleeps, as long as that pays: see rdma.CQ.SetBusyPoll. It takes processors, of which the
	// software devices of kernels have none to spare, and with hardware buys latency: rdma.DefaultBusyPoll is a good value. 0 means not at all.
	BusyPoll time.Duration
	// AckTimeout is how long the device waits for the peer's before it sends again, six times over: 4.096 µs · 2^AckTimeout. 0 means
	// [DefaultAckTimeout].
	AckTimeout uint8
	// ToS is the type of service of the IP packets: DSCP << 2.
	ToS uint8
	// Backlog is how many connections a listener has made, or is making, that wait for Accept. Each pins its Buffer and half as much again, as
	// any connection does: with the defaults 3 MiB, and all 128 together 403 MB. The kernel holds as many requests behind them, which pin
	// nothing. 0 means [DefaultBacklog].
	Backlog int
}

// Defaults of [Config].
const (
	DefaultBuffer           = 2 << 20
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultLinger           = 3 * time.Second
	DefaultAckTimeout       = 17 // 0.54 s
	DefaultBacklog          = 128
)

// Bounds of Buffer.
const (
	minBuffer = 4 << 10
	maxBuffer = 1 << 30
)

// complete gives the configuration with all defaults filled in.
func (c *Config) complete() (Config, error) {
	var own Config
	if c != nil {
		own = *c
	}
	or(&own.Buffer, DefaultBuffer)
	or(&own.HandshakeTimeout, DefaultHandshakeTimeout)
	or(&own.Linger, DefaultLinger)
	or(&own.AckTimeout, DefaultAckTimeout)
	or(&own.Backlog, DefaultBacklog)
	switch {
	case own.Buffer < minBuffer || own.Buffer > maxBuffer:
		return own, fmt.Errorf("cm: a buffer of %d bytes; valid sizes are %d to %d", own.Buffer, minBuffer, maxBuffer)
	case own.AckTimeout > 31:
		return own, fmt.Errorf("cm: an AckTimeout of %d: the maximum is 31", own.AckTimeout)
	case own.HandshakeTimeout < 0 || own.Linger < 0 || own.Heartbeat < 0 || own.BusyPoll < 0 || own.Backlog < 0:
		return own, errors.New("cm: a timeout or a number of the Config is negative")
	}
	own.Buffer = (own.Buffer + 63) &^ 63
	return own, nil
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}
