package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// ForkStatus says whether registered memory survives a fork: whether ibv_fork_init was called, or the kernel makes it
// unnecessary. This package never calls ibv_fork_init. A Go program that starts others with os/exec does not need it:
// the child runs no Go code before exec.
//
// C: ibv_is_fork_initialized
//
// Man: ibv_is_fork_initialized(3)
func ForkStatus() (ibv.ForkStatus, error) { return libibverbs.IsForkInitialized() }
