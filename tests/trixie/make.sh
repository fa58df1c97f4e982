#!/bin/bash
# Make a root file system with another Debian, for enter.sh: make.sh FOLDER [SUITE], as root, unless FOLDER is
# there. It appears when all is done; until then it is FOLDER.partial. PYTHON (python3) has this package.
set -eu
folder=$1 suite=${2:-trixie}
here=$(dirname "$0")
new=$folder.partial
[ -d "$folder" ] && exit
command -v debootstrap >/dev/null || apt-get install --no-install-recommends -y debootstrap
# shellcheck disable=SC2016  # apt-get reads the dollar sign
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian')
mirror=${mirror%%$'\n'*}
[ -n "$mirror" ] || { echo "apt knows no mirror of Debian on this machine. Type apt-get update." >&2 && exit 1; }
# debootstrap's wget reads the environment only.
for scheme in http https; do
    proxy=$(apt-config dump --format '%v%n' "Acquire::$scheme::Proxy" | head -n 1)
    if [ -n "$proxy" ] && [ "$proxy" != DIRECT ]; then export "${scheme}_proxy=$proxy"; fi
done
rm -rf "$new" # of one that was killed
mkdir -p "$(dirname "$folder")"
# In namespaces of its own, so that a killed one leaves no process and no mount.
unshare --mount --pid --fork --kill-child --mount-proc \
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$new" "$mirror"
apt-config dump Acquire >"$new/etc/apt/apt.conf.d/00machine"
# Nothing in it starts a service: invoke-rc.d(8).
printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
chmod 755 "$new/usr/sbin/policy-rc.d"
of_sandbox='from trtllm_hpc.sandbox.requirements import COMMANDS, LIBRARIES, OPTIONAL as more
print(*{*COMMANDS.values(), *LIBRARIES.values(), *more.values()}, sep="\n")'
mapfile -t packages < <("${PYTHON:-python3}" -c "$of_sandbox")
# Beside a sandbox's own packages: Python with virtual environments, what Triton's server is linked with, and a
# compiler for plugins of Slurm.
packages+=(curl gcc libc6-dev libfaketime libnuma1 libpython3-dev libslurm-dev make procps python3-venv)
export DEBIAN_FRONTEND=noninteractive
bash "$here/enter.sh" "$new" apt-get -q update
bash "$here/enter.sh" "$new" apt-get -q install --no-install-recommends -y "${packages[@]}"
bash "$here/enter.sh" "$new" apt-get -q clean
mv "$new" "$folder"
