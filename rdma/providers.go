// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/rdma/internal/provider"
)

// EnvCall is the environment variable that selects how queues without a Way option are called: blocking or system.
const EnvCall = provider.EnvCall

// Verbs is a set of data-path verbs.
type Verbs uint8

// Values of Verbs.
const (
	PostSend  = Verbs(provider.PostSend)  // ibv_post_send, and ibv_wr_start to ibv_wr_complete
	PostRecv  = Verbs(provider.PostRecv)  // ibv_post_recv and ibv_post_srq_recv
	Poll      = Verbs(provider.Poll)      // ibv_poll_cq, and ibv_start_poll to ibv_end_poll
	ReqNotify = Verbs(provider.ReqNotify) // ibv_req_notify_cq
)

// Provider lists the verbs of a provider that run entirely in user space (Pure), and those that enter the kernel but do
// not sleep there (Brief). Both may be called directly, without entersyscall.
type Provider struct {
	Name   string // as in the name of its shared object: "mlx5" for libmlx5.so.1 and libmlx5-rdmav34.so
	Pure   Verbs
	Brief  Verbs
	Reason string // evidence: source files and test results
}

// Providers returns the built-in list. Other providers, and verbs that are neither in Pure nor in Brief, are called the
// blocking way, which is correct for every provider.
func Providers() (all []Provider) {
	for _, p := range provider.Providers() {
		all = append(all, Provider{p.Name, Verbs(p.Pure), Verbs(p.Brief), p.Reason})
	}
	return all
}

// ways converts the providers of the options to package provider's type.
func (o *QueueOptions) ways() (all []provider.Provider) {
	for _, p := range o.Providers {
		all = append(all, provider.Provider{Name: p.Name, Pure: provider.Verbs(p.Pure), Brief: provider.Verbs(p.Brief),
			Reason: p.Reason})
	}
	return all
}
