// SPDX-License-Identifier: BSD-2-Clause

package soft

import (
	"fmt"
	"io"
	"syscall"

	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
)

// Capture is a capture of a fabric's packets that goes on until Close. Its methods may be called by any number of
// goroutines.
type Capture struct{ capture *pcap.Capture }

// Capture writes the packets that the fabric's devices send and receive over their wire from now on, in the format of
// libpcap, which Wireshark, tcpdump and gopacket read. What devices of one fabric say to each other takes no wire, and
// is not in it. Each packet has its time in nanoseconds and begins with its IP header. Received packets are there
// whatever is wrong with them; those that are sent are there before the system has them. A socket does not tell all of
// the IP header: its TTL and type of service are made up.
//
// A goroutine of the capture's writes to w, some packets in each Write. The wire never waits for it: packets that come
// while 8 MiB of others wait are left out, and so are all others once a Write has failed. Counts says how many. Capture
// itself writes the file's header, and fails if that does, or if no device of the fabric has a wire. Several captures
// may go on at once.
func (f *Fabric) Capture(w io.Writer) (*Capture, error) {
	if f.fabric == nil {
		return nil, errZero
	}
	if w == nil {
		return nil, fmt.Errorf("soft: a capture has nothing to write to: %w", syscall.EINVAL)
	}
	c, err := f.fabric.Capture(w)
	if err != nil {
		return nil, err
	}
	return &Capture{c}, nil
}

// Counts says how many packets were written, and how many were left out.
func (c *Capture) Counts() (written, lost uint64) {
	if c.capture == nil {
		return 0, 0
	}
	return c.capture.Counts()
}

// Close ends the capture. It waits until the packets that were captured are written, and returns the error of the
// Write that failed, if one did. It does not close w. If w blocks, so does Close: close w first, then.
func (c *Capture) Close() error {
	if c.capture == nil {
		return errZero
	}
	return c.capture.Close()
}

// captureVariable is the environment variable that names a file that all packets of devices opened by Named are
// captured to.
const captureVariable = "GOVERBS_SOFT_CAPTURE"

// CaptureByEnvironment captures to the file that the environment variable GOVERBS_SOFT_CAPTURE names, as is done for
// the devices of Named, until the process ends. Without the variable, it does nothing.
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

// namedFabric makes the fabric of Named, with its capture.
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
