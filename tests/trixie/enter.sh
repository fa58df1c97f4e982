#!/bin/bash
# Run a command with another Debian's /usr, /etc and /var: enter.sh FOLDER COMMAND [ARGUMENT...], as root, in a
# mount namespace that nobody else uses. All else is the machine's, so that run folders, homes and virtual
# environments keep their paths. PYTHON (python3) is the program whose interpreter and library stay, too.
set -eu
if [ "$1" != --inside ]; then
    exec unshare --mount --propagation slave bash "$0" --inside "$@"
fi
root=$2
shift 2
files=(/etc/hosts /etc/resolv.conf /etc/ssl/certs)
case $root in
    *.partial) ;; # without the machine's users, since packages add their own
    *)
        files+=(/etc/group /etc/passwd /etc/shadow /etc/pip.conf /etc/xdg/pip)
        of_python='import os, sys, sysconfig as it; print(os.path.realpath(sys.executable), it.get_path("stdlib"),
            os.path.join(it.get_config_var("LIBDIR") or "/usr/lib", it.get_config_var("INSTSONAME")), sep="\n")'
        mapfile -t -O ${#files[@]} files < <("${PYTHON:-python3}" -c "$of_python")
        ;;
esac
mask=$(umask)
umask 022
mount --bind "$root" "$root"
for folder in /*; do
    case $folder in
        /bin | /boot | /etc | /lib* | /lost+found | /sbin | /usr | /var) continue ;;
    esac
    if [ -d "$folder" ] && [ ! -L "$folder" ]; then
        mkdir -p "$root$folder"
        mount --rbind "$folder" "$root$folder"
    fi
done
mount --rbind /var/tmp "$root/var/tmp"
for file in "${files[@]}"; do
    if [ -d "$file" ]; then
        mkdir -p "$root$file"
    elif [ -e "$file" ]; then
        [ -e "$root$file" ] || : >"$root$file"
    else
        continue
    fi
    mount --bind "$file" "$root$file"
done
here=$PWD
cd "$root"
# Not chroot: inside it the kernel makes no user namespaces (unshare(2)), which apptainer needs. The old root
# lies on top of the new one until it is unmounted (pivot_root(2)).
pivot_root . .
umount --lazy .
cd "$here" 2>/dev/null || cd /
umask "$mask"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec "$@"
