// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"io"
	"syscall"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
)

// Capture is a running capture of a fabric's packets. Its methods may be called concurrently.
type Capture struct{ capture *pcap.Capture }

// Capture starts writing the packets that the fabric's devices send and receive over their wire to w, in the format of
// libpcap, which Wireshark, tcpdump and gopacket read. Messages between devices of one fabric use no wire and are not
// captured. Packets begin with their IP header and have timestamps in nanoseconds. Received packets include malformed
// ones; sent packets are captured before the system call. Sockets do not report the complete IP header, so TTL and type
// of service are made up.
//
// A separate goroutine writes to w, several packets in each Write. The wire never waits for it: packets are dropped
// while 8 MiB are queued, and all packets are dropped once a Write has failed. Counts returns their number. Capture
// itself writes the file header. It returns an error if that fails or if no device of the fabric has a wire. Several
// captures may run at once.
func (f *Fabric) Capture(w io.Writer) (*Capture, error) {
	if f.fabric == nil {
		return nil, errZero
	}
	if w == nil {
		return nil, fmt.Errorf("soft: capture: writer is nil: %w", syscall.EINVAL)
	}
	c, err := f.fabric.Capture(w)
	if err != nil {
		return nil, err
	}
	return &Capture{c}, nil
}

// Counts returns the numbers of packets written and dropped.
func (c *Capture) Counts() (written, lost uint64) {
	if c.capture == nil {
		return 0, 0
	}
	return c.capture.Counts()
}

// Close ends the capture. It waits until the captured packets are written, and returns the error of a failed Write. It
// does not close w. If w blocks, so does Close; in that case close w first.
func (c *Capture) Close() error {
	if c.capture == nil {
		return errZero
	}
	return c.capture.Close()
}

// captureVariable is the environment variable that names the capture file for all devices opened by Named.
const captureVariable = "GOVERBS_SOFT_CAPTURE"

// CaptureByEnvironment captures to the file named by the environment variable GOVERBS_SOFT_CAPTURE until the process
// ends, as is done for the devices of Named. Without the variable, it does nothing.
func (f *Fabric) CaptureByEnvironment() error {
	name := rights.Getenv(captureVariable)
	if name == "" {
		return nil
	}
	to, err := pcap.Create(name)
	if err == nil {
		_, err = f.Capture(to)
	}
	if err != nil {
		return fmt.Errorf("soft: %s: %w", captureVariable, err)
	}
	return nil
}

// namedFabric creates the fabric of Named and starts its capture.
func namedFabric(first DeviceOptions) (*Fabric, error) {
	f, err := New(Options{Devices: []DeviceOptions{first}})
	if err != nil {
		return nil, err
	}
	if err := f.CaptureByEnvironment(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
