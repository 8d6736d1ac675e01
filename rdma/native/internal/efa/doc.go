// SPDX-License-Identifier: BSD-2-Clause

// Package efa is the driver of Amazon's Elastic Fabric Adapters: the private parts of commands, the formats of the
// queues, and the data path of UD and SRD queue pairs.
//
// The kernel allocates the queues, and the process maps them. A send queue lies in the adapter: requests are prepared
// in ordinary memory, and copied there before the doorbell. A request carries a number, which its completion repeats.
//
// No adapter has run it. conformance/provider compares its commands, queues, doorbells and completions with those of
// libefa over an emulated kernel.
package efa
