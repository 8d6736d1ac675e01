// SPDX-License-Identifier: BSD-2-Clause

// Package wire defines the messages between host and guest. The host passes a Config in a file of the initramfs. The
// guest sends Messages, one JSON object a line, over its second serial port.
package wire

import "time"

// Paths in the guest.
const (
	ConfigFile = "/goverbs.json"
	Port       = "/dev/ttyS1"
	ModuleDir  = "/modules"
	OutDir     = "/out"
)

// Environment variables of programs in the guest.
const (
	EnvGuest   = "GOVERBS_GUEST"           // kernel name: "6.1"
	EnvLibrary = "GOVERBS_LIBRARY"         // version of the guest's rdma-core: "44.0-2"
	EnvDevice  = "GOVERBS_DEVICE"          // the RDMA device: "rxe0" or "siw0"
	EnvNetdev  = "GOVERBS_NETDEV"          // the network device below it
	EnvAddress = "GOVERBS_ADDRESS"         // its IPv4 address
	EnvPeer    = "GOVERBS_PEER_ADDRESS"    // IPv4 address of the other guest, if there are two
	EnvHost    = "GOVERBS_HOST"            // number of this guest in a pair: "0" or "1"
	EnvPath    = "GOVERBS_PATH"            // "mlx5" selects the device's data path in Go, rdma/mlx5
	EnvCounts  = "GOVERBS_EMULATED_COUNTS" // file with the resource counts of an emulated kernel
	EnvOut     = "GOVERBS_OUT"             // directory whose files are copied to the host
)

// Config configures a guest.
type Config struct {
	Kernel   string
	Library  string   // version of rdma-core
	Driver   string   // of the RDMA device: "rxe" or "siw"
	Modules  []string // in load order
	Programs []Program
	Host     int  // number of this guest in a pair
	Pair     bool // a virtio network device connects the guest to another one
	NoDevice bool // no RDMA device: for tests of the runner itself
}

// Program is a program to run in the guest.
type Program struct {
	Name    string
	Path    string
	Args    []string
	Env     []string
	Dir     string
	Timeout time.Duration // on timeout, SIGQUIT and then SIGKILL
}

// Kind is the type of a message.
type Kind string

const (
	Boot   Kind = "boot"   // init runs; Text is the kernel's release
	Ready  Kind = "ready"  // modules and device are ready; Text describes them
	Start  Kind = "start"  // Program starts
	Output Kind = "output" // Program wrote Data
	Late   Kind = "late"   // Program timed out and got SIGQUIT
	Exit   Kind = "exit"   // Program ended with Status, or by Signal
	File   Kind = "file"   // Data is the content of output file Text
	Failed Kind = "failed" // init itself failed: Text
	Done   Kind = "done"   // last message
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
