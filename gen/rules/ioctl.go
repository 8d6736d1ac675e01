// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
)

// ioctlAttrs maps the methods of RDMA_VERBS_IOCTL to the enumerations of their attributes. No header connects the two.
var ioctlAttrs = map[string]string{
	"UVERBS_METHOD_INVOKE_WRITE":        "uverbs_attrs_invoke_write_cmd_attr_ids",
	"UVERBS_METHOD_INFO_HANDLES":        "uverbs_attrs_info_handles_id",
	"UVERBS_METHOD_QUERY_PORT":          "uverbs_attrs_query_port_cmd_attr_ids",
	"UVERBS_METHOD_QUERY_PORT_SPEED":    "uverbs_attrs_query_port_speed_cmd_attr_ids",
	"UVERBS_METHOD_GET_CONTEXT":         "uverbs_attrs_get_context_attr_ids",
	"UVERBS_METHOD_QUERY_CONTEXT":       "uverbs_attrs_query_context_attr_ids",
	"UVERBS_METHOD_QUERY_GID_TABLE":     "uverbs_attrs_query_gid_table_cmd_attr_ids",
	"UVERBS_METHOD_QUERY_GID_ENTRY":     "uverbs_attrs_query_gid_entry_cmd_attr_ids",
	"UVERBS_METHOD_PD_DESTROY":          "uverbs_attrs_pd_destroy_ids",
	"UVERBS_METHOD_CQ_CREATE":           "uverbs_attrs_create_cq_cmd_attr_ids",
	"UVERBS_METHOD_CQ_DESTROY":          "uverbs_attrs_destroy_cq_cmd_attr_ids",
	"UVERBS_METHOD_QP_CREATE":           "uverbs_attrs_create_qp_cmd_attr_ids",
	"UVERBS_METHOD_QP_DESTROY":          "uverbs_attrs_destroy_qp_cmd_attr_ids",
	"UVERBS_METHOD_SRQ_CREATE":          "uverbs_attrs_create_srq_cmd_attr_ids",
	"UVERBS_METHOD_SRQ_DESTROY":         "uverbs_attrs_destroy_srq_cmd_attr_ids",
	"UVERBS_METHOD_WQ_CREATE":           "uverbs_attrs_create_wq_cmd_attr_ids",
	"UVERBS_METHOD_WQ_DESTROY":          "uverbs_attrs_destroy_wq_cmd_attr_ids",
	"UVERBS_METHOD_RWQ_IND_TBL_DESTROY": "uverbs_attrs_rwq_ind_tbl_destroy_ids",
	"UVERBS_METHOD_AH_DESTROY":          "uverbs_attrs_ah_destroy_ids",
	"UVERBS_METHOD_MW_DESTROY":          "uverbs_attrs_mw_destroy_ids",
	"UVERBS_METHOD_XRCD_DESTROY":        "uverbs_attrs_xrcd_destroy_ids",
	"UVERBS_METHOD_FLOW_DESTROY":        "uverbs_attrs_flow_destroy_ids",
	"UVERBS_METHOD_FLOW_ACTION_DESTROY": "uverbs_attrs_destroy_flow_action_esp",
	"UVERBS_METHOD_DM_ALLOC":            "uverbs_attrs_alloc_dm_cmd_attr_ids",
	"UVERBS_METHOD_DM_FREE":             "uverbs_attrs_free_dm_cmd_attr_ids",
	"UVERBS_METHOD_DMAH_ALLOC":          "uverbs_attrs_alloc_dmah_cmd_attr_ids",
	"UVERBS_METHOD_DMAH_FREE":           "uverbs_attrs_free_dmah_cmd_attr_ids",
	"UVERBS_METHOD_DMABUF_ALLOC":        "uverbs_attrs_alloc_dmabuf_cmd_attr_ids",
	"UVERBS_METHOD_DM_MR_REG":           "uverbs_attrs_reg_dm_mr_cmd_attr_ids",
	"UVERBS_METHOD_REG_MR":              "uverbs_attrs_reg_mr_cmd_attr_ids",
	"UVERBS_METHOD_REG_DMABUF_MR":       "uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids",
	"UVERBS_METHOD_QUERY_MR":            "uverbs_attrs_query_mr_cmd_attr_ids",
	"UVERBS_METHOD_ADVISE_MR":           "uverbs_attrs_advise_mr_cmd_attr_ids",
	"UVERBS_METHOD_MR_DESTROY":          "uverbs_attrs_mr_destroy_ids",
	"UVERBS_METHOD_COUNTERS_CREATE":     "uverbs_attrs_create_counters_cmd_attr_ids",
	"UVERBS_METHOD_COUNTERS_DESTROY":    "uverbs_attrs_destroy_counters_cmd_attr_ids",
	"UVERBS_METHOD_COUNTERS_READ":       "uverbs_attrs_read_counters_cmd_attr_ids",
	"UVERBS_METHOD_ASYNC_EVENT_ALLOC":   "uverbs_attrs_async_event_create",
}

// ioctlDriverAttrs are the attributes of a driver's own request and response, which several methods have.
var ioctlDriverAttrs = []string{"UVERBS_ATTR_UHW_IN", "UVERBS_ATTR_UHW_OUT"}

// IoctlPlan is the package of the kernel's ioctl methods.
type IoctlPlan struct {
	UAPI    *Plan
	Kernels []IoctlKernel // the earliest first
}

// IoctlKernel holds the methods of a kernel.
type IoctlKernel struct {
	Name, Source string
	Methods      []IoctlMethod
}

// IoctlMethod is a method of an object. Its names are constants of package uapi.
type IoctlMethod struct {
	Object, Name string
	Attrs        []IoctlAttr
}

// IoctlAttr is an attribute with its constant, and for handles the constant of the object's type.
type IoctlAttr struct {
	model.IoctlAttr
	Name, Target string
}

// Ioctls plans the package of ioctl methods from the schemas of kernels, and the constants in package uapi; nil without
// schemas.
func Ioctls(schemas []*model.IoctlSchema, plans []*Plan) (*IoctlPlan, error) {
	i := slices.IndexFunc(plans, func(p *Plan) bool { return p.Package.Name == "uapi" })
	if len(schemas) == 0 || i < 0 {
		return nil, nil
	}
	plan := &IoctlPlan{UAPI: plans[i]}
	used := map[string]bool{}
	var errs []error
	for _, s := range schemas {
		kernel := IoctlKernel{Name: s.Kernel, Source: s.Source}
		for _, a := range s.Attrs {
			enum := ioctlAttrs[a.Method]
			if enum == "" {
				errs = append(errs, fmt.Errorf("headers/ioctls/%s: no enumeration of the attributes of %s; add it to ioctlAttrs "+
					"in gen/rules/ioctl.go", s.File(), a.Method))
				continue
			}
			used[a.Method] = true
			name, err := plan.attr(enum, a)
			target, err2 := plan.object(a)
			if err := cmp.Or(err, err2); err != nil {
				errs = append(errs, fmt.Errorf("headers/ioctls/%s: %w", s.File(), err))
				continue
			}
			last := len(kernel.Methods) - 1
			if last < 0 || kernel.Methods[last].Name != a.Method {
				kernel.Methods = append(kernel.Methods, IoctlMethod{Object: a.Object, Name: a.Method})
				last++
			}
			m := &kernel.Methods[last]
			m.Attrs = append(m.Attrs, IoctlAttr{a, name, target})
		}
		plan.Kernels = append(plan.Kernels, kernel)
	}
	for method := range ioctlAttrs {
		if !used[method] {
			errs = append(errs, fmt.Errorf("gen/rules/ioctl.go: stale row %s: no kernel in headers/ioctls has it; delete it",
				method))
		}
	}
	slices.SortFunc(plan.Kernels, func(a, b IoctlKernel) int { return project.CompareReleases(a.Name, b.Name) })
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return plan, errors.Join(errs...)
}

// attr returns the constant of an attribute.
func (p *IoctlPlan) attr(enum string, a model.IoctlAttr) (string, error) {
	for _, e := range p.UAPI.Enums {
		for _, c := range e.Names {
			if e.Tag == enum && c.Value.Uint64() == uint64(a.ID) {
				return c.Go, nil
			}
		}
	}
	for _, c := range p.UAPI.Consts {
		if slices.Contains(ioctlDriverAttrs, c.C) && c.Value.Uint64() == uint64(a.ID) {
			return c.Go, nil
		}
	}
	return "", fmt.Errorf("%s: enum %s has no constant for attribute %d", a.Method, enum, a.ID)
}

// object returns the constant of the type of an attribute's object, or "" for other kinds of attributes.
func (p *IoctlPlan) object(a model.IoctlAttr) (string, error) {
	if !a.Kind.IsObject() {
		return "", nil
	}
	for _, e := range p.UAPI.Enums {
		for _, c := range e.Names {
			if e.Tag == "uverbs_default_objects" && c.Value.Uint64() == uint64(a.Target) {
				return c.Go, nil
			}
		}
	}
	return "", fmt.Errorf("%s: attribute %d: unknown type of object %d", a.Method, a.ID, a.Target)
}
