// SPDX-License-Identifier: Apache-2.0

package parse

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPAMConfiguration is the published type with the fields that it lacks. Nobody
// writes it: its definition is made from the published one (deploy/gen).
type IPAMConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPAMConfigurationSpec `json:"spec,omitempty"`
}

// IPAMConfigurationSpec is what Weir reads.
type IPAMConfigurationSpec struct {
	MaxBlocksPerHost int32 `json:"maxBlocksPerHost,omitempty"`
	// KubeVirtVMAddressPersistence is VMAddressEnabled or VMAddressDisabled; empty = the latter.
	KubeVirtVMAddressPersistence string `json:"kubeVirtVMAddressPersistence,omitempty"`
}

// What KubeVirtVMAddressPersistence can be.
const (
	VMAddressEnabled  = "Enabled"
	VMAddressDisabled = "Disabled"
)
