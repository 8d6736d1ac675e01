// SPDX-License-Identifier: BSD-2-Clause

// Package wire is what host and guest tell each other: the host a Config, in a file of the initial file system; the
// guest Messages, one JSON object a line, over its second serial port.
package wire

import "time"

// Where things are in the guest.
const (
	ConfigFile = "/goverbs.json"
	Port       = "/dev/ttyS1"
	ModuleDir  = "/modules"
	OutDir     = "/out"
)

// Environment of the programs in the guest.
const (
	EnvGuest   = "GOVERBS_GUEST"           // the kernel's name as the host calls it: "6.1"
	EnvLibrary = "GOVERBS_LIBRARY"         // version of the guest's rdma-core: "44.0-2"
	EnvDevice  = "GOVERBS_DEVICE"          // the RDMA device: "rxe0"
	EnvNetdev  = "GOVERBS_NETDEV"          // the network device below it
	EnvAddress = "GOVERBS_ADDRESS"         // its IPv4 address
	EnvPeer    = "GOVERBS_PEER_ADDRESS"    // the other guest's IPv4 address, where there are two
	EnvHost    = "GOVERBS_HOST"            // which guest of two: "0" or "1"
	EnvPath    = "GOVERBS_PATH"            // "mlx5": the device's data path in Go, rdma/mlx5
	EnvCounts  = "GOVERBS_EMULATED_COUNTS" // a file in which an emulated kernel says what programs hold
	EnvOut     = "GOVERBS_OUT"             // a directory; what programs leave there is brought to the host
)

// Config tells a guest what to do.
type Config struct {
	Kernel   string
	Library  string   // version of rdma-core
	Modules  []string // in order
	Programs []Program
	Host     int  // of two
	Pair     bool // the guest has a virtio network device, with the other guest behind it
	NoDevice bool // no RDMA device: for tests of the runner itself
}

// Program is a program to run in the guest.
type Program struct {
	Name    string
	Path    string
	Args    []string
	Env     []string
	Dir     string
	Timeout time.Duration // then it is asked with SIGQUIT to tell where it is, and killed
}

// Kind is what a message says.
type Kind string

const (
	Boot   Kind = "boot"   // init runs; Text is the kernel's release
	Ready  Kind = "ready"  // modules and device are there; Text says which
	Start  Kind = "start"  // Program starts
	Output Kind = "output" // Program wrote Data
	Late   Kind = "late"   // Program's time is up, and it is asked where it is
	Exit   Kind = "exit"   // Program ended with Status, or by Signal
	File   Kind = "file"   // Data of the file Text that programs left
	Failed Kind = "failed" // init itself failed: Text
	Done   Kind = "done"   // nothing more comes
)

// Message is a line from the guest.
type Message struct {
	Kind     Kind    `json:"kind"`
	Uptime   float64 `json:"uptime"` // seconds since the kernel started
	Program  string  `json:"program,omitempty"`
	Text     string  `json:"text,omitempty"`
	Data     []byte  `json:"data,omitempty"`
	Status   int     `json:"status,omitempty"`
	Signal   string  `json:"signal,omitempty"`
	TimedOut bool    `json:"timedOut,omitempty"`
}
